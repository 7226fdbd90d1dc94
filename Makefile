.PHONY: test slow coverage lint docs wheel cost reproduce

test:  ## the default tests (minutes)
	pytest

slow:  ## the tests that take longer
	pytest -m slow

coverage:  ## lines and branches that the default tests run
	pytest --cov

lint:  ## format check, lint, import contract, types
	ruff format --check . && ruff check .
	lint-imports && python .ci/import_circles.py
	mypy

docs:  ## the documentation as a site, in site/
	mkdocs build --strict

wheel:  ## the wheel, built, checked, and run from an empty environment
	.ci/wheel

cost:  ## time gradlab against a bare loop and other trainers
	for name in update monitor fp16_cpu sweep; do python experiments/cost/$$name.py; done

reproduce:  ## run a study again and write its page and the ledger: make reproduce NAME=exploding; no NAME lists them
	python experiments/reproduce.py $(NAME)
