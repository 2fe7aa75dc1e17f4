// Package wire is the guest protocol as bytes: frames on one stream between a
// host and the init of a sandbox, and the multiplexed streams inside it.
//
// It is not either end of the protocol: package guest is the host's, package
// inside the sandbox's. It knows no process and no journal, and imports the
// standard library only, because the init is built from it.
//
// A link is set up by the host: Sync with a random link nonce, to which the init
// answers SyncAck (or SyncNack), one Known per command and KnownEnd. The host then
// sends Have for every command whose output it wants, and output flows. Every
// frame carries the nonce of its link, so nothing of a dead host's link is taken
// for this one's. Numbers: a command keeps the number its starter chose until it is
// forgotten; streams opened by the host are even, those opened by the init odd.
package wire
