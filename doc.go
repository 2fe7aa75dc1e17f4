// Package sandboxd is the contract floor of sandboxd: the words of the system as
// types, its errors, and the interfaces that every implementation meets.
//
// It is not an implementation of anything. It does no I/O, starts no goroutine
// and imports the standard library only, so that the public client, the faces,
// the host and every driver can share it.
//
// Conventions that hold for the whole package: sizes are bytes, times are UTC,
// durations on the wire are seconds (fields ending in _s), offsets count from 0.
// Every method that can fail returns an error for which ClassOf gives a class;
// an error without a class is ClassInternal.
package sandboxd
