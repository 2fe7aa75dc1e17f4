// Package cli is the command line: its grammar, how a client command finds its
// server, and how errors become lines and exit codes. It is not a server: the
// roles it starts are handed in, and everything else it does through a
// sandboxd.Host.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/app/datadir"
)

// Process is what a program gets from its caller.
type Process struct {
	Args    []string // without the program's name
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Environ []string // as os.Environ
}

// Getenv reads Environ.
func (p Process) Getenv(name string) string {
	for i := len(p.Environ) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(p.Environ[i], "="); ok && k == name {
			return v
		}
	}
	return ""
}

// Roles are the parts of the program that are no clients.
type Roles struct {
	Version func() Version
	Serve   func(context.Context, Process, ServeOptions) error
	// Host is Serve without the control listener.
	Host   func(context.Context, Process, ServeOptions) error
	Doctor func(context.Context, Process, DoctorOptions) error
	// Selftest prints its report; green says whether everything holds.
	Selftest func(context.Context, Process, SelftestOptions) (green bool, err error)
	Prepare  func(context.Context, Process, PrepareOptions) error
	// CheckRuntimes prints what is wrong with a catalogue, or what is in it.
	CheckRuntimes func(context.Context, Process, CheckRuntimesOptions) (right bool, err error)
	PrintRuntimes func(context.Context, Process, PrintRuntimesOptions) error
}

// Version is what `sandboxd version` says.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
}

// ServeOptions are the settings of `sandboxd serve`.
type ServeOptions struct {
	Data           string   `name:"data" placeholder:"DIR" setting:"SANDBOXD_DATA" help:"Data directory (default: /var/lib/sandboxed for root, else in the user's state directory)."`
	WorkspaceRoot  string   `type:"path" placeholder:"DIR" setting:"SANDBOXD_WORKSPACE_ROOT" help:"Where the files of sandboxes are, each in a directory of its key; workspaces in the data directory by default."`
	Listen         string   `placeholder:"ADDR" setting:"SANDBOXD_LISTEN" help:"Address of the API, 127.0.0.1:9090 by default, of the host role 127.0.0.1:8080; port 0 takes a free one."`
	HostListen     string   `placeholder:"ADDR" setting:"SANDBOXD_HOST_LISTEN" help:"Address of the host's own API for a remote control; off by default."`
	ProtectedBy    string   `placeholder:"TEXT" setting:"SANDBOXD_PROTECTED_BY" help:"How an address beyond this machine is protected, as 'caddy with TLS'; needed to listen on one."`
	AllowedHosts   []string `name:"allowed-host" placeholder:"NAME" setting:"SANDBOXD_ALLOWED_HOSTS" help:"Name by which the server may be asked, as that of the proxy before it; repeatable. Addresses and localhost always may."`
	Driver         string   `default:"auto" enum:"auto,process,docker,fake" setting:"SANDBOXD_DRIVER" help:"How sandboxes are isolated: auto (every driver that works here, process first), process, docker (containers, by the engine at DOCKER_HOST or its default socket), or fake, which isolates nothing and is for tests."`
	DefaultImage   string   `name:"default-image" placeholder:"REF" setting:"SANDBOXD_DEFAULT_IMAGE" help:"Image of sandboxes in containers that name none."`
	OCIRuntime     string   `name:"oci-runtime" placeholder:"NAME" setting:"SANDBOXD_OCI_RUNTIME" help:"OCI runtime of containers that name none, as runsc; the engine's default otherwise."`
	Images         string   `default:"any" enum:"any,none" setting:"SANDBOXD_IMAGES" help:"Which images and OCI runtimes a holder of the API key may name: any, the default, or none."`
	Bridge         string   `default:"none" enum:"any,none" setting:"SANDBOXD_BRIDGE" help:"Who may have the network bridge, which reaches everything public without lists and a log: none, the default, or any, every holder of the API key. In containers under runc; the server then makes nftables rules of its own."`
	MaxSandboxes   Bound    `placeholder:"N" setting:"SANDBOXD_MAX_SANDBOXES" help:"Most sandboxes that run at once, ${max_sandboxes} by default, or none for no bound; stopped ones do not count."`
	MaxOpen        Bound    `placeholder:"N" setting:"SANDBOXD_MAX_OPEN" help:"Most sandboxes that are open, running or put to sleep; no bound by default."`
	MaxPerTenant   Bound    `placeholder:"N" setting:"SANDBOXD_MAX_PER_TENANT" help:"Most open sandboxes of one tenant, 10 by default, or none for no bound."`
	EvictIdleAfter Bound    `placeholder:"TIME" setting:"SANDBOXD_EVICT_IDLE_AFTER" help:"Put the longest idle sandbox to sleep for one that finds no place, if it was idle for so long, as 300 or 5m; never by default."`
	IdleTimeout    Bound    `placeholder:"TIME" setting:"SANDBOXD_IDLE_TIMEOUT" help:"Close a sandbox without work for so long, 30m by default, or none; its files stay."`
	AppIdleTimeout Bound    `placeholder:"TIME" setting:"SANDBOXD_APP_IDLE_TIMEOUT" help:"The same for apps, 35m by default."`
	OwnerLease     Bound    `placeholder:"TIME" setting:"SANDBOXD_OWNER_LEASE" help:"Close a sandbox of the sandboxes face without a request of its owner for so long, 30m by default."`
	WorkspaceTTL   Bound    `name:"workspace-ttl" placeholder:"TIME" setting:"SANDBOXD_WORKSPACE_TTL" help:"Delete closed sandboxes with their files when nobody used them for so long; never by default."`
	EnvironmentTTL Bound    `name:"environment-ttl" placeholder:"TIME" setting:"SANDBOXD_ENVIRONMENT_TTL" help:"Remove what was installed in a stopped sandbox after so long, 24h by default; files stay."`
	SandboxDefaults
	PolicyOverrides string   `type:"path" placeholder:"FILE" setting:"SANDBOXD_POLICY_OVERRIDES" help:"JSON with fields of the policy that win over all settings and changes; read again when it changes."`
	EgressAllow     []string `name:"egress-allow-address" placeholder:"ADDR" setting:"SANDBOXD_EGRESS_ALLOW_ADDRESS" help:"Address or prefix that sandboxes with the network proxy may reach although it is private or this machine's, as 10.1.2.0/24 or 192.0.2.7:443; repeatable."`
	Ready           int      `placeholder:"N" default:"8" setting:"SANDBOXD_READY" help:"Most environments that are kept ready for sandboxes that will be opened, ${default} by default; how many are follows what is opened, and each counts as a sandbox that runs until one needs its place. 0 for none."`
	EgressUpstream  string   `placeholder:"URL" setting:"SANDBOXD_EGRESS_UPSTREAM" help:"Proxy through which they reach the outside, as http://proxy:3128; none by default."`
	CABundle        string   `name:"ca-bundle" type:"path" placeholder:"FILE" setting:"SANDBOXD_CA_BUNDLE" help:"Certificates (PEM) that programs in sandboxes trust beside the machine's own."`
	Prewarm         bool     `default:"true" negatable:"" setting:"SANDBOXD_PREWARM" help:"Build the images of all runtimes when the server starts, behind its back; on by default."`
	RuntimeOptions
	UIEnabled       bool   `name:"ui-enabled" hidden:"" setting:"SANDBOXD_UI_ENABLED"` // another service's page, which a host has not; a start says so
	StopOnInterrupt bool   `help:"Stop every sandbox on SIGINT, as on a terminal."`
	LogFormat       string `default:"text" enum:"text,json" setting:"SANDBOXD_LOG_FORMAT" help:"Log lines as text or json."`
}

// SandboxDefaults are what sandboxes get whose request and runtime say nothing, until the
// policy is changed. Zero is the built-in value. The variables have the names that the
// Python service of the sessions wire gave them.
type SandboxDefaults struct {
	DefaultRuntime string    `placeholder:"NAME" setting:"SANDBOXD_DEFAULT_RUNTIME" help:"Runtime of sandboxes that name none; the first of the catalogue by default."`
	Memory         bytesFlag `placeholder:"SIZE" setting:"SANDBOXD_MEM_LIMIT" help:"Memory of a sandbox, 1G by default."`
	Swap           bytesFlag `placeholder:"SIZE" setting:"SANDBOXD_MEMSWAP_LIMIT" help:"Memory and swap of a sandbox together; no swap by default."`
	CPUShares      int64     `name:"cpu-shares" placeholder:"N" setting:"SANDBOXD_CPU_SHARES" help:"Weight of a sandbox beside others when processors are short, 2 to 262144."`
	CPUs           float64   `name:"cpus" placeholder:"N" setting:"SANDBOXD_CPUS" help:"Cores of a sandbox, 2 by default."`
	PIDs           int64     `name:"pids" placeholder:"N" setting:"SANDBOXD_PIDS_LIMIT" help:"Processes and threads of a sandbox, 512 by default."`
	Tmp            bytesFlag `placeholder:"SIZE" setting:"SANDBOXD_TMPFS_SIZE" help:"Size of its /tmp, 64M by default."`
	CommandTimeout Bound     `placeholder:"TIME" setting:"SANDBOXD_EXECUTE_TIMEOUT" help:"Most time of a command on the sessions wire, 300s by default."`
	MaxRead        bytesFlag `placeholder:"SIZE" setting:"SANDBOXD_MAX_READ_BYTES" help:"Largest whole file that is put into JSON, 8M by default."`
}

// Apply puts what is set into a policy.
func (d SandboxDefaults) Apply(p *sandboxd.Policy) {
	p.DefaultRuntime = cmp.Or(d.DefaultRuntime, p.DefaultRuntime)
	p.MaxReadBytes = cmp.Or(int64(d.MaxRead), p.MaxReadBytes)
	if d.CommandTimeout.Set && !d.CommandTimeout.None {
		p.CommandTimeoutS = sandboxd.Seconds(d.CommandTimeout.N)
	}
	l := &p.Limits
	l.MemoryBytes, l.TmpBytes = cmp.Or(int64(d.Memory), l.MemoryBytes), cmp.Or(int64(d.Tmp), l.TmpBytes)
	l.SwapBytes, l.CPUShares = cmp.Or(int64(d.Swap), l.SwapBytes), cmp.Or(d.CPUShares, l.CPUShares)
	l.CPUs, l.PIDs = cmp.Or(d.CPUs, l.CPUs), cmp.Or(d.PIDs, l.PIDs)
}

// DoctorOptions are the flags of `sandboxd doctor`.
type DoctorOptions struct {
	Data string `name:"data" placeholder:"DIR" setting:"SANDBOXD_DATA" help:"Data directory to look at."`
	Host string `name:"host" placeholder:"URL" help:"Look at a host of the sessions wire instead: does it serve what this version's clients need?"`
	JSON bool   `name:"json" help:"Answer as JSON."`
}

type serveCmd struct{ ServeOptions }

func (c *serveCmd) Run(ctx context.Context, p Process, r Roles) error {
	o := c.ServeOptions
	if o.Listen == "" {
		o.Listen = defaultListen
	}
	return r.Serve(ctx, p, o)
}

// hostCmd takes what serve takes. Its one listener is the host's.
type hostCmd struct{ ServeOptions }

func (c *hostCmd) Run(ctx context.Context, p Process, r Roles) error {
	o := c.ServeOptions
	switch {
	case o.Listen != "":
		o.HostListen = o.Listen
	case o.HostListen == "":
		o.HostListen = defaultHostListen
	}
	return r.Host(ctx, p, o)
}

// Where the roles listen unless they are told.
const (
	defaultListen     = "127.0.0.1:9090"
	defaultHostListen = "127.0.0.1:8080"
)

type doctorCmd struct{ DoctorOptions }

func (c *doctorCmd) Run(ctx context.Context, p Process, r Roles) error {
	return r.Doctor(ctx, p, c.DoctorOptions)
}

type versionCmd struct {
	JSON bool `name:"json" help:"Answer as JSON."`
}

func (c *versionCmd) Run(p Process, r Roles) error {
	v := r.Version()
	if c.JSON {
		return writeJSON(p.Stdout, v)
	}
	line := "sandboxd " + v.Version
	if v.Commit != "" {
		line += " (" + v.Commit + ")"
	}
	_, err := fmt.Fprintf(p.Stdout, "%s %s\n", line, v.Go)
	return err
}

type grammar struct {
	Serve      serveCmd      `cmd:"" help:"Run the server: API and sandboxes in one process."`
	Host       hostCmd       `cmd:"" help:"Run the host alone: the sandboxes of a control elsewhere, or of clients of the sessions wire."`
	Run        runCmd        `cmd:"" help:"Run one command in a fresh sandbox and delete it."`
	Create     createCmd     `cmd:"" help:"Create a sandbox, or attach to the one of a key."`
	Exec       execCmd       `cmd:"" help:"Run a command in a sandbox; its exit status is passed on."`
	Shell      shellCmd      `cmd:"" help:"Open a login shell in a sandbox."`
	Cp         cpCmd         `cmd:"" help:"Copy files or directories in or out."`
	Ls         lsCmd         `cmd:"" help:"List files of a workspace."`
	Ps         psCmd         `cmd:"" help:"List sandboxes, or the commands of one."`
	Logs       logsCmd       `cmd:"" help:"Print the output of a command."`
	Network    networkCmd    `cmd:"" help:"Say what a sandbox's proxy let through and what it refused, and why."`
	Port       portCmd       `cmd:"" help:"Reach a port of a sandbox on 127.0.0.1 here, or list its ports."`
	Runtimes   runtimesCmd   `cmd:"" help:"List what the server offers to open, or check and print a catalogue of runtimes."`
	Image      imageCmd      `cmd:"" help:"Import, pull, list and remove what sandboxes can run in."`
	Get        getCmd        `cmd:"" help:"Say what a sandbox is, what keeps it awake and what it uses."`
	Stop       stopCmd       `cmd:"" help:"Stop sandboxes and keep their files, or stop one command."`
	Rm         rmCmd         `cmd:"" help:"Delete sandboxes with their files."`
	Close      closeCmd      `cmd:"" help:"Close sandboxes: only their files stay."`
	Env        envCmd        `cmd:"" help:"Replace the variables of a sandbox, or list their names."`
	Hold       holdCmd       `cmd:"" help:"Keep a sandbox awake for a time."`
	Policy     policyCmd     `cmd:"" help:"Show or change what sandboxes may have and how long they last."`
	MCP        mcpCmd        `cmd:"" name:"mcp" help:"Serve MCP on stdin and stdout: one sandbox for one agent."`
	Doctor     doctorCmd     `cmd:"" help:"Say how well this machine can isolate, line by line."`
	Prepare    prepareCmd    `cmd:"" help:"Build the images of runtimes before a server needs them, as in a deploy."`
	Selftest   selftestCmd   `cmd:"" help:"Try to break out of sandboxes of its own, and say what holds on this machine."`
	Completion completionCmd `cmd:"" help:"Print a completion script for a shell."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

// server says which server a client command talks to.
type server struct {
	URL   string `name:"url" placeholder:"URL" setting:"SANDBOXD_URL" help:"Server, http://127.0.0.1:9090 by default."`
	Token string `name:"token" placeholder:"KEY" setting:"SANDBOXD_TOKEN" help:"API key; else the data directory's token file is read."`
	Data  string `name:"data" placeholder:"DIR" setting:"SANDBOXD_DATA" help:"The server's data directory, where the key is read."`
}

const defaultURL = "http://" + defaultListen

// dial makes the client; it talks to nobody yet.
func (s server) dial(p Process) (*client.Client, error) {
	if s.URL == "" {
		s.URL = defaultURL
	}
	if s.Token == "" {
		if s.Data == "" {
			s.Data = datadir.Default(os.Getuid(), p.Getenv)
		}
		name := s.Data + "/" + datadir.TokenFile
		token, err := datadir.ReadSecret(name)
		if err != nil {
			return nil, sandboxd.Errorf(sandboxd.ClassUnauthorized, "no API key: %v", err).
				WithHint("give --token or SANDBOXD_TOKEN, or name the server's data directory with --data; `sandboxd serve` makes the key")
		}
		s.Token = token
	}
	return client.New(s.URL, s.Token)
}

// hintList is for who names a sandbox that is not there. A file or a command that
// is not there is another matter.
const hintList = "list what is there with: sandboxd ps"

// explain adds what only the command line knows to an error that has no hint.
func explain(err error) error {
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Hint != "" {
		return err
	}
	hinted := *e
	switch e.Class {
	case sandboxd.ClassUnauthorized:
		hinted.Hint = "the key is in the file token of the server's data directory; give it with --token, SANDBOXD_TOKEN or --data"
	case sandboxd.ClassCapacity:
		hinted.Hint = "delete a sandbox (sandboxd ps, sandboxd rm ID) or raise the ceiling (sandboxd policy max_running=N)"
	case sandboxd.ClassGone:
		hinted.Hint = hintList
	default:
		return err
	}
	return &hinted
}

// exitStatus ends the program with a code and no line.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// usageError is a wrong command line: exit 2.
type usageError struct{ text, hint string }

func (e usageError) Error() string { return e.text }

// exited is how kong says that it printed help and is done.
type exited int

// Main runs one command line and returns the exit code: 0, the code of the
// command that ran, 1 for an error, 2 for a wrong command line.
func Main(ctx context.Context, p Process, roles Roles) (code int) {
	var g grammar
	p, err := adoptPeers(p)
	if err != nil {
		return report(p.Stderr, err)
	}
	parser, err := kong.New(&g,
		kong.Name("sandboxd"),
		kong.Description("Runs code that nobody has read yet, in isolated sandboxes."),
		kong.Vars{"max_sandboxes": strconv.Itoa(sandboxd.DefaultMaxSandboxes)},
		kong.Writers(p.Stdout, p.Stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.Resolvers(settings(p)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(p, roles),
	)
	if err != nil {
		return report(p.Stderr, err)
	}
	defer func() {
		if v := recover(); v != nil {
			done, ok := v.(exited)
			if !ok {
				panic(v)
			}
			code = int(done)
		}
	}()
	args := hoist(p.Args)
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		hint := "sandboxd --help"
		var pe *kong.ParseError
		if errors.As(err, &pe) && pe.Context != nil && pe.Context.Command() != "" {
			hint = "sandboxd " + strings.Fields(pe.Context.Command())[0] + " --help"
		}
		return report(p.Stderr, usageError{err.Error(), "see " + hint})
	}
	return report(p.Stderr, explain(parsed.Run()))
}

// hoist moves --url, --token and --data from before the command to behind it,
// where each command that has them takes them.
func hoist(args []string) []string {
	at := 0
	for at < len(args) {
		name, _, joined := strings.Cut(args[at], "=")
		if name != "--url" && name != "--token" && name != "--data" {
			break
		}
		if at++; !joined {
			at++
		}
	}
	if at == 0 || at >= len(args) {
		return args
	}
	words := 1
	if args[at] == "runtimes" && at+1 < len(args) && !strings.HasPrefix(args[at+1], "-") {
		words = 2 // the one command that has others below it
	}
	return slices.Concat(args[at:at+words], args[:at], args[at+words:])
}

// settings fills flags from the environment, by their `setting` tag. A flag on
// the command line wins.
func settings(p Process) kong.Resolver {
	return kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		if name := flag.Tag.Get("setting"); name != "" {
			if value := p.Getenv(name); value != "" {
				return value, nil
			}
		}
		return nil, nil
	})
}

// report prints an error as one line and a hint, and says the exit code.
func report(w io.Writer, err error) int {
	var status exitStatus
	var usage usageError
	var e *sandboxd.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		complain(w, usage.text, usage.hint)
		return 2
	case errors.As(err, &e):
		complain(w, e.Error(), e.Hint)
	default:
		complain(w, err.Error(), "")
	}
	return 1
}

// complain writes the two lines that every error has.
func complain(w io.Writer, text, hint string) {
	fmt.Fprintf(w, "sandboxd: %s\n", oneLine(text))
	if hint != "" {
		fmt.Fprintf(w, "hint: %s\n", oneLine(hint))
	}
}
