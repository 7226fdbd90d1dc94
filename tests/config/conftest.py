"""What the tests of configurations share."""

from collections.abc import Iterator

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from gradlab.base.conf import conf_dir
from gradlab.config.compose import register


@pytest.fixture(scope="module")
def hydra_session() -> Iterator[None]:
    """One Hydra for the module: composing is fast once its parsers are warm."""
    register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield
