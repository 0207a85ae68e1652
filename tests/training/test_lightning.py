"""The LightningModule of the example does what the plain loop does, and goes on from its checkpoints."""

import pytest
import pytorch_lightning as pl
import torch
from examples import lightning_module as example
from torch.utils.data import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
]


def loader():
    return DataLoader(example.data(512), batch_size=64)


def trainer(epochs):
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def module():
    torch.manual_seed(0)
    return example.Classifier()


def assert_equal(left, right):
    for name, value in left.state_dict().items():
        assert torch.equal(value, right.state_dict()[name]), name
    assert torch.equal(*(m.dual.state_dict()["state"][0]["xi"] for m in (left, right)))


def plain_loop(epochs):
    plain = module()
    primal = plain.configure_optimizers()
    for _ in range(epochs):
        for x, y in loader():
            logits = plain.model(x).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
            violations = {"rate": logits.sigmoid().mean() - 0.3}
            plain.lagrangian.ascend(plain.dual, violations)
            primal.zero_grad()
            plain.lagrangian(loss, violations).backward()
            primal.step()
    return plain


def test_the_module_trains_as_a_plain_loop_does_and_goes_on_from_a_checkpoint(tmp_path):
    whole = module()
    trainer(3).fit(whole, loader())
    assert whole.lagrangian.multipliers["rate"].item() > 0
    assert_equal(whole, plain_loop(3))

    first = module()
    stopped = trainer(1)
    stopped.fit(first, loader())
    stopped.save_checkpoint(tmp_path / "last.ckpt")
    torch.manual_seed(5)
    again = example.Classifier()
    trainer(3).fit(again, loader(), ckpt_path=tmp_path / "last.ckpt")
    assert_equal(whole, again)


def test_pretrained_weights_load_beside_a_constraint_that_they_know_nothing_of(tmp_path):
    stopped, pretrained = trainer(1), module()
    stopped.fit(pretrained, loader())
    stopped.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del checkpoint["state_dict"]["lagrangian.rate"]
    torch.save(checkpoint, tmp_path / "weights.ckpt")
    with pytest.warns(UserWarning, match=r"lagrangian\.rate"):  # Lightning says what it did not find
        again = example.Classifier.load_from_checkpoint(tmp_path / "weights.ckpt", strict=False)
    assert torch.equal(*(next(each.model.parameters()) for each in (again, pretrained)))
    assert again.lagrangian.multipliers["rate"].item() == 0
    with pytest.raises(RuntimeError, match=r'Missing key.*"lagrangian\.rate"'):
        example.Classifier.load_from_checkpoint(tmp_path / "weights.ckpt")


def test_the_constraint_is_kept():
    constrained = module()
    trainer(40).fit(constrained, loader())
    x, y = example.data(4096, seed=1).tensors
    with torch.no_grad():
        rate = constrained.model(x).sigmoid().mean().item()
    assert y.mean() > 0.7
    assert rate == pytest.approx(0.3, abs=0.05)
