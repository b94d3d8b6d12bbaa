/* Loaded into user-mode Linux before libc (ld.so(8), LD_PRELOAD), where the processor has AMX.
 *
 * UML 6.1 sets the vector registers of its processes by PTRACE_SETREGSET with a buffer that ends
 * after PKRU, and the host's kernel refuses a buffer that does not have the whole of its XSAVE area
 * (xstateregs_set in Linux): the guest would end at its boot with "ptrace set fp regs failed". This
 * ptrace(2) appends the rest: zeros, since no program has the registers of AMX unless it has asked
 * the kernel for them (arch_prctl(2), ARCH_REQ_XCOMP_PERM), which UML does not offer.
 *
 * It includes no header and links no library, so that a compiler alone can build it. */

enum { SYS_PTRACE = 101, PTRACE_PEEKTEXT = 1, PTRACE_PEEKUSER = 3, PTRACE_GETREGSET = 0x4204, PTRACE_SETREGSET = 0x4205, NT_X86_XSTATE = 0x202, MOST = 65536 };

struct iovec {
	void *base;
	unsigned long length;
};

extern int *__errno_location(void);

static long call(long request, long pid, void *address, void *data)
{
	long result;
	register void *fourth __asm__("r10") = data;
	__asm__ volatile("syscall" : "=a"(result) : "0"((long)SYS_PTRACE), "D"(request), "S"(pid), "d"(address), "r"(fourth) : "rcx", "r11", "memory");
	if (result < 0) {
		*__errno_location() = -result;
		return -1;
	}
	return result;
}

/* area is as long as the host's XSAVE area; UML's kernel is one thread. */
static char area[MOST];
static unsigned long whole;

static long set(long pid, struct iovec *given)
{
	struct iovec all = {area, MOST};
	if (!whole) {
		if (call(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &all) < 0)
			return -1;
		whole = all.length;
		for (unsigned long i = 0; i < MOST; i++)
			area[i] = 0;
	}
	if (given->length >= whole)
		return call(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, given);
	for (unsigned long i = 0; i < given->length; i++)
		area[i] = ((char *)given->base)[i];
	all.length = whole;
	return call(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, &all);
}

/* The declaration of glibc has three dots; on x86-64 the arguments are in the same registers. */
long ptrace(long request, long pid, void *address, void *data)
{
	if ((int)request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE)
		return set((int)pid, data);
	if ((int)request >= PTRACE_PEEKTEXT && (int)request <= PTRACE_PEEKUSER) {
		/* The system call writes the word to data; the function returns it (ptrace(2)). */
		long word;
		*__errno_location() = 0;
		return call((int)request, (int)pid, address, &word) < 0 ? -1 : word;
	}
	return call((int)request, (int)pid, address, data);
}
