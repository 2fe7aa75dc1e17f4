// Package egress is the way out of a sandbox whose network is `proxy`: an HTTP
// proxy, CONNECT included, over byte streams that come out of sandboxes. Each
// Gate is one sandbox's: its rules, what it moved, what it was refused and why.
//
// Two questions are asked of every connection. May this sandbox reach this name?
// Its own lists say; an empty one means no. May any sandbox reach this address?
// That is asked of the address that is about to be dialled and nothing else, so a
// name that changes its mind between question and dial gains nothing.
//
// It is not a firewall: what does not ask it has no route at all, because the
// sandbox's network namespace has none. It does not look into TLS, keeps nothing
// on disk, and knows neither sandboxes nor drivers.
package egress
