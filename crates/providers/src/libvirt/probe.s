# A boot sector that powers its machine off if the processor can do what a kernel of today needs: long mode, and SSE2 in it.
# Where KVM opens but must emulate such instructions, it fails here within seconds, as a kernel would.
#
#   as probe.s -o probe.o && ld --oformat binary -Ttext 0x7c00 -o probe.bin probe.o
    .code16
    .globl _start
_start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    cld
    # Page tables at 0x1000, 0x2000, 0x3000: the first 2 MiB, where they are.
    movw $0x1000, %di
    movw $0x1800, %cx
    rep stosw
    movw $0x2003, 0x1000
    movw $0x3003, 0x2000
    movw $0x0083, 0x3000
    # PAE, and SSE for the operating system.
    movl %cr4, %eax
    orl $0x620, %eax
    movl %eax, %cr4
    movl $0x1000, %eax
    movl %eax, %cr3
    # Long mode.
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    andl $0xfffffffb, %eax
    orl $0x80000003, %eax
    movl %eax, %cr0
    lgdtl table
    ljmpl $8, $inside
    .code64
inside:
    # An instruction that every kernel of today uses.
    pxor %xmm0, %xmm0
    movdqu %xmm0, 0x4000
    cmpq $0, 0x4000
    jne stop
    # Soft off, at the port where SeaBIOS has put the ACPI registers of q35.
    movw $0x604, %dx
    movw $0x2000, %ax
    outw %ax, %dx
stop:
    hlt
    jmp stop
    .balign 8
descriptors:
    .quad 0
    .quad 0x00209a0000000000
table:
    .word 15
    .long descriptors
    .org 510
    .word 0xaa55
