"""Per-sample losses equal the module's loss for the sample alone, for every shape of sample."""

import pytest
import torch
from torch import nn

from larder.torch import per_sample

GENERATOR = torch.Generator().manual_seed(3)


def drawn(*shape):
    """Random outputs."""
    return torch.randn(*shape, generator=GENERATOR)


def classes(*shape, among=5):
    """Random classes."""
    return torch.randint(among, shape, generator=GENERATOR)


def one_by_one(module, outputs, targets):
    """The module's own loss of each sample alone."""
    return torch.stack([module(outputs[at : at + 1], targets[at : at + 1]) for at in range(len(outputs))])


MODULES = [
    (nn.CrossEntropyLoss(), drawn(7, 5), classes(7)),
    (nn.CrossEntropyLoss(label_smoothing=0.1), drawn(7, 5), classes(7)),
    (nn.CrossEntropyLoss(), drawn(7, 5), drawn(7, 5).softmax(1)),
    (nn.NLLLoss(), drawn(7, 5).log_softmax(1), classes(7)),
    (nn.CrossEntropyLoss(), drawn(4, 5, 6, 3), classes(4, 6, 3)),
    (nn.BCEWithLogitsLoss(), drawn(6, 1), torch.rand(6, 1, generator=GENERATOR)),
    (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 3.0, 1.0])), drawn(6, 3), classes(6, 3, among=2).float()),
    (nn.BCEWithLogitsLoss(), drawn(6), classes(6, among=2).float()),
    (nn.MSELoss(), drawn(6), drawn(6)),
    (nn.MSELoss(), drawn(6, 2, 3), drawn(6, 2, 3)),
    (nn.MSELoss(reduction="sum"), drawn(6, 2, 3), drawn(6, 2, 3)),
    (nn.L1Loss(), drawn(6, 2), drawn(6, 2)),
    (nn.SmoothL1Loss(reduction="none"), drawn(6), drawn(6)),
    (nn.HuberLoss(), drawn(6, 4), drawn(6, 4)),
    (nn.KLDivLoss(reduction="batchmean"), drawn(6, 4).log_softmax(1), drawn(6, 4).softmax(1)),
    (nn.MultiLabelSoftMarginLoss(), drawn(6, 4), classes(6, 4, among=2).float()),
]


@pytest.mark.parametrize(("module", "outputs", "targets"), MODULES, ids=lambda value: type(value).__name__)
def test_a_sample_has_the_loss_that_it_has_alone(module, outputs, targets):
    """Rule: one loss per sample, equal to the module's of the sample alone."""
    losses = per_sample(module)(outputs, targets)
    assert losses.shape == (len(outputs),)
    alone = one_by_one(module, outputs, targets)
    assert torch.allclose(losses, alone.flatten() if alone.dim() > 1 else alone)


@pytest.mark.parametrize(("module", "outputs", "targets"), MODULES[:10], ids=lambda value: type(value).__name__)
def test_their_mean_is_the_modules_loss(module, outputs, targets):
    """Rule: without weights and ignored elements, training with the mean of the losses is training with the module."""
    one, other = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    per_sample(module)(one, targets).mean().backward()
    module(other, targets).backward()
    assert torch.allclose(one.grad, other.grad, atol=1e-6)


def test_class_weights_stay():
    """Rule: a sample's loss is weighted by its class's weight, independently of the other samples."""
    weights, outputs, targets = torch.tensor([1.0, 2.0, 4.0]), drawn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    losses = per_sample(nn.CrossEntropyLoss(weight=weights))(outputs, targets)
    assert torch.allclose(losses, per_sample(nn.CrossEntropyLoss())(outputs, targets) * weights[targets])


def test_ignored_pixels_leave_the_mean():
    """Rule: a sample's loss is the mean over the pixels that count; one without any has the loss 0."""
    module = nn.CrossEntropyLoss(ignore_index=255)
    outputs, masks = drawn(3, 5, 4, 4), classes(3, 4, 4)
    masks[0, :3], masks[1] = 255, 255
    losses = per_sample(module)(outputs, masks)
    assert torch.allclose(losses[[0, 2]], one_by_one(module, outputs, masks)[[0, 2]])
    assert losses[1] == 0


def test_padding_of_sequences_leaves_the_mean():
    """Rule: a short sequence has the loss that it would have without its padding."""
    module = nn.CrossEntropyLoss(ignore_index=0)
    outputs, tokens = drawn(2, 9, 6), classes(2, 6, among=8) + 1
    tokens[0, 2:] = 0
    losses = per_sample(module)(outputs, tokens)
    assert torch.allclose(losses[0], module(outputs[:1, :, :2], tokens[:1, :2]))
    assert torch.allclose(losses[1], module(outputs[1:], tokens[1:]))


def test_a_module_of_ones_own():
    """Rule: any module with a ``reduction`` works, with its own arguments, and is not modified."""

    class Focal(nn.Module):
        def __init__(self):
            super().__init__()
            self.reduction = "mean"

        def forward(self, outputs, targets, gamma=2.0):
            found = (outputs - targets).abs() ** gamma
            return found if self.reduction == "none" else found.mean()

    module, outputs, targets = Focal(), drawn(4, 3), drawn(4, 3)
    losses = per_sample(module)(outputs, targets, gamma=3.0)
    assert torch.allclose(losses, ((outputs - targets).abs() ** 3).mean(1))
    assert module.reduction == "mean"


def test_later_weights_count():
    """Rule: a module that is moved or changed afterwards is used as it then is."""
    module = nn.CrossEntropyLoss(weight=torch.ones(3))
    losses_of, outputs, targets = per_sample(module), drawn(4, 3), classes(4, among=3)
    before = losses_of(outputs, targets)
    module.weight.mul_(2)
    assert torch.allclose(losses_of(outputs, targets), 2 * before)
    module.double()
    assert losses_of(outputs.double(), targets).dtype == torch.float64


class Fixed(nn.Module):
    """A loss module that always gives one number."""

    reduction = "mean"

    def forward(self, outputs, targets):
        """One number."""
        return (outputs - targets).mean()


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (nn.functional.cross_entropy, TypeError, "expected a loss module such as .* not function"),
        (nn.Linear(2, 2), TypeError, "Linear has no reduction"),
        (nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2]), TypeError, "no reduction"),
    ],
)
def test_what_is_no_loss_module(loss, error, message):
    """Rule: an object without losses of single samples is refused at once."""
    with pytest.raises(error, match=message):
        per_sample(loss)


def test_an_unknown_reduction():
    """Rule: a reduction that is not one of torch's is refused."""
    module = nn.MSELoss()
    module.reduction = "median"
    with pytest.raises(ValueError, match="the reduction of MSELoss is 'median'"):
        per_sample(module)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (Fixed(), (drawn(4, 2), drawn(4, 2)), "gives one number even with"),
        (nn.CrossEntropyLoss(), (drawn(5), torch.tensor(2)), "gives one number"),
        (
            nn.CTCLoss(),
            (drawn(9, 2, 5).log_softmax(2), classes(2, 3) % 4 + 1, torch.tensor([9, 9]), torch.tensor([3, 3])),
            r"shape \(2,\) for outputs of shape \(9, 2, 5\), whose first dimension is not the batch",
        ),
    ],
)
def test_losses_that_belong_to_no_sample(module, arguments, message):
    """Rule: a result that is not one loss or more for each sample is refused at the call."""
    with pytest.raises(ValueError, match=message):
        per_sample(module)(*arguments)
