"""Adapters for serving engines. No engine is imported until its adapter is: ``radix.engines.vllm``,
``radix.engines.sglang``, ``radix.engines.transformers`` each need the package of that name.
"""
