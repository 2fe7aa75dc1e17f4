// The file lets the compiler accept functions without bodies: they are the runtime's.
