"""What a model is told, as templates: package data of ``coda_agent.authors.prompting``, found by ``importlib.resources``.

``spec.md.j2`` describes the epilogue language from the sandbox's own tables, ``operator.md.j2`` the target,
``examples.md.j2`` shows the worked examples of ``examples/<name>/`` (each an operator and its epilogue, both checked by
the tests), ``answer.md.j2`` says how to answer, ``repair.md.j2`` what was wrong with an answer.
"""
