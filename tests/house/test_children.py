"""Processes that the gateway starts are given their environment, and end with it."""

import ast

_LAUNCHES = {"create_subprocess_exec", "create_subprocess_shell", "Popen", "run", "check_call", "check_output", "call"}


def _launches(tree: ast.Module) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _LAUNCHES
        and ast.unparse(node.func.value) in ("asyncio", "asyncio.subprocess", "subprocess")
        and not ast.unparse(node.func).startswith("asyncio.run")
    ]


def test_no_process_inherits_the_environment(shipped):
    """Each launch names its environment: an inherited one has secrets, and execve fails while a thread changes it."""
    launches = [(path, call) for path, tree in shipped.items() for call in _launches(tree)]
    assert len(launches) >= 3
    assert [
        f"{path}:{call.lineno}" for path, call in launches if all(each.arg != "env" for each in call.keywords)
    ] == []


def test_no_process_outlives_its_parent(shipped):
    """Each launch is of ``children.bound``: a process that was killed leaves nothing running."""
    launches = [(path, call) for path, tree in shipped.items() for call in _launches(tree)]
    assert [
        f"{path}:{call.lineno}" for path, call in launches if "children.bound(" not in ast.unparse(call.args[0])
    ] == []
