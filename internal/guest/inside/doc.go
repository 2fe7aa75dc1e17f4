// Package inside is the sandbox's end of the guest protocol: it starts commands
// through a Spawner, carries their input, holds their output until the host says
// it is durable, and forwards ports and services.
//
// It is not process 1: it reaps nothing and knows no namespace, so that the fake
// driver can run the same code over built-in programs. Nothing a host sends makes
// it panic; a host that breaks the protocol loses its link and commands go on. It
// imports the standard library and golang.org/x/sys/unix only.
package inside
