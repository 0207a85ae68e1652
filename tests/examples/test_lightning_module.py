"""The Lightning example trains as it stands, and a validation on new rows says that its constraint is met."""

import pytest


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*litlogger")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_new_rows_are_called_positive_as_seldom_as_was_asked(monkeypatch, tmp_path, capsys):
    from examples import lightning_module  # so late because it takes seconds to import Lightning

    monkeypatch.chdir(tmp_path)  # Lightning writes where it is
    lightning_module.main()
    said = capsys.readouterr().out
    feasible, violation = (
        float(next(line for line in said.splitlines() if name in line).split()[-2])
        for name in ("val_nupi_feasible", "val_nupi_violation")
    )
    assert feasible == 1.0
    assert violation <= 0.01
    assert "rate" in said
