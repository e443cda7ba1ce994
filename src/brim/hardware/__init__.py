"""What is known of a device: its memory, its speeds, what it can do; and the FLOPs a program asks of it.

Import from the files (`from brim.hardware.device import detect`): this file imports nothing, so that `brim doctor` can
look at a machine on which JAX does not start.

    device.py             Device; `named` reads devices.toml, `detect` looks at what is here
    nvidia.py, host.py    what nvidia-smi and the operating system say, without starting JAX
    probe.py              speeds that no table holds, measured once
    flops.py roofline.py  FLOPs of a jaxpr; the seconds they need at least
    compiler_options.py   options for XLA, handed over per compile
    doctor.py             what is wrong with this installation
"""
