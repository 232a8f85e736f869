"""An emulated vLLM replica with injectable faults: real HTTP, modelled time."""
