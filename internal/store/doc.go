// Package store holds the implementations of sandboxd.HostStore: SQLite for a
// host, memory for the fake world.
//
// It decides nothing that is not in the contract: which state a sandbox should
// be in, when a command is over and what to do after a restart is the host's.
package store
