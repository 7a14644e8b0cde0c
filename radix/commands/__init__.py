"""The commands of `radix`, a module each: its options (`add`) and what it does (`run`)."""
