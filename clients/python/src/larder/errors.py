"""What can go wrong, as the caller needs to tell it apart."""


class LarderError(Exception):
    """Base of every error of this package."""


class GatewayUnavailable(LarderError):
    """The gateway could not be reached, or kept breaking off, for as long as it was retried.

    Args:
        endpoint: address of the gateway.
        attempts: how many times it was tried.
        cause: what the last attempt failed with.
    """

    def __init__(self, endpoint: str, attempts: int, cause: Exception) -> None:
        self.endpoint = endpoint
        self.attempts = attempts
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"{endpoint} did not answer, tried {times}: {cause or type(cause).__name__}")


class UnexpectedAnswer(LarderError):
    """Something answered, but not as a Larder gateway does; the endpoint is probably another server's."""

    def __init__(self, endpoint: str, status: int, detail: str) -> None:
        self.endpoint = endpoint
        self.status = status
        super().__init__(f"{endpoint} answered {status}: {detail}; is this the address of a Larder gateway?")
