"""What is known of a device: its memory, its speeds, what it can do; and the FLOPs a program asks of it.

Import from the files (`from brim.hardware.device import detect`): this file imports nothing, so that `brim doctor` can
look at a machine on which JAX does not start.

    facts.py              Device: its numbers, and what it can run
    devices/*.toml        facts of devices that need not be here, each number with its source
    entries.py names.py   those tables and one of the user's own, read strictly; names, read forgivingly
    spelling.py           when two spellings are one name, and what a wrong one was meant to be
    limits.py             what numbers a table can hold, and the units that others were written in
    device.py match.py    `detect` looks at what is here, and which entry it is
    nvidia.py, host.py    what nvidia-smi and the operating system say, without starting JAX
    mig.py                the slices of a partitioned GPU
    probe.py              speeds that no table holds, measured once
    flops.py roofline.py  FLOPs of a jaxpr; the seconds they need at least, and MFU
    compiler_options.py   options for XLA, handed over per compile
    doctor.py             what is wrong with this installation
"""
