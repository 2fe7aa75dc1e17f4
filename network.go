package sandboxd

import "time"

// NetworkMode is how much of the network a sandbox reaches.
type NetworkMode string

// The modes. none: its own loopback. proxy: in addition an HTTP proxy of the host
// on ProxyAddress, which connects to what the sandbox's lists allow. bridge: a network
// of its tenant's own, from which it reaches all that is public, and nobody reaches it.
const (
	NetworkNone   NetworkMode = "none"
	NetworkProxy  NetworkMode = "proxy"
	NetworkBridge NetworkMode = "bridge"
)

// ProxyPort and ProxyAddress are where the proxy is, inside every sandbox that has
// one.
const (
	ProxyPort    = 3128
	ProxyAddress = "127.0.0.1:3128"
)

// CABundle is where every sandbox finds the certificates of the authorities that
// its host trusts, as PEM, where the host has any.
const CABundle = "/run/sandboxd/ca.pem"

// Network is what a sandbox may reach. It is fixed when the sandbox is made.
type Network struct {
	Mode NetworkMode `json:"mode,omitempty" enum:"none,proxy,bridge" doc:"none, the default, proxy, or bridge: everything public, in containers and where the host allows it"`
	// Allow and Deny are lists of rules; a connection needs one of Allow and none of
	// Deny. A Sandbox has them in their canonical spelling.
	Allow []string `json:"allow,omitempty" doc:"What the proxy lets through: a host name, *.name for every name below it, * for everything public, an address or prefix; with :port for one port. Empty: nothing"`
	Deny  []string `json:"deny,omitempty" doc:"What it refuses although allow lets it through"`
}

// NetworkActivity is what a sandbox's proxy did since the server started.
type NetworkActivity struct {
	Since          time.Time `json:"since" doc:"When the server started: nothing before is counted or kept here"`
	Connections    int64     `json:"connections" doc:"Opened to the outside"`
	SentBytes      int64     `json:"sent_bytes" doc:"To the outside"`
	ReceivedBytes  int64     `json:"received_bytes"`
	Denials        []Denial  `json:"denials" nullable:"false" doc:"What was refused, oldest first; the same again counts up"`
	DenialsDropped int64     `json:"denials_dropped" doc:"Refusals that are not in the list any more"`
}

// DenyReason is why a connection was refused.
type DenyReason string

// The reasons.
const (
	DenyNotAllowed DenyReason = "not_allowed" // no rule of allow covers it
	DenyRule       DenyReason = "denied"      // a rule of deny covers it
	DenyAddress    DenyReason = "address"     // it is at an address that no sandbox may reach
	DenyMalformed  DenyReason = "malformed"   // the name or address has no meaning, or more than one
)

// Denial is a connection that a sandbox asked for and did not get.
type Denial struct {
	Host    string     `json:"host" doc:"As it was asked for, host:port"`
	Address string     `json:"address,omitempty" doc:"What the name resolved to, with reason address"`
	Reason  DenyReason `json:"reason" enum:"not_allowed,denied,address,malformed"`
	Message string     `json:"message" doc:"The reason in words, as the sandbox was told"`
	Count   int64      `json:"count" doc:"How often"`
	FirstAt time.Time  `json:"first_at"`
	LastAt  time.Time  `json:"last_at"`
}
