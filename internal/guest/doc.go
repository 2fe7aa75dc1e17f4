// Package guest is the host's end of the guest protocol: one Link per connection
// to the init of a sandbox, alike on every driver.
//
// It is not the journal and not the lifecycle: it hands output to a Handler,
// acknowledges what the Handler has made durable, and knows no store. It believes
// nothing that comes out of a sandbox: an init that lies about offsets, sends more
// than was granted or floods loses its link, and what it can make the host hold is
// bounded (some 3 MiB of output, 4 MiB in streams). A Link's reader never waits for
// a Handler, a client or its own writes, so one stalled command stalls no other.
package guest
