package host

import (
	"cmp"
	"strings"

	"sandboxd"
)

// The bounds of what one request may ask.
const (
	maxEnv      = 1000
	maxEnvBytes = 128 << 10 // of one variable: the kernel's own bound
	maxArgs     = 10000
	maxLabels   = 64
	maxMemory   = 1 << 44
)

// checkOpen validates a request and fills in the defaults.
func (h *Host) checkOpen(req *sandboxd.OpenRequest) error {
	if req.Key == "" {
		req.Key = sandboxd.NewID()
	}
	if !sandboxd.ValidKey(req.Key) {
		return sandboxd.Invalid("key", "must be 1 to 64 of A-Z a-z 0-9 . _ - and not begin with '-'")
	}
	if req.Tenant != "" && !sandboxd.ValidKey(req.Tenant) {
		return sandboxd.Invalid("tenant", "must be 1 to 64 of A-Z a-z 0-9 . _ - and not begin with '-'")
	}
	req.Face = cmp.Or(req.Face, sandboxd.FaceNative)
	if w := req.WaitS; w != nil && !(*w >= 0 && *w <= 600) {
		return sandboxd.Invalid("wait_s", "must be between 0 and 600")
	}
	if err := h.checkRuntime(req); err != nil {
		return err
	}
	if err := checkEnv(req.Env); err != nil {
		return err
	}
	if len(req.Labels) > maxLabels {
		return sandboxd.Invalid("labels", "more than %d", maxLabels)
	}
	for k, v := range req.Labels {
		if !sandboxd.ValidKey(k) || len(v) > 256 || hasControl(v) {
			return sandboxd.Invalid("labels", "a name must look like a key and a value have at most 256 printable bytes")
		}
		if strings.HasPrefix(strings.ToLower(k), "sandboxd") {
			return sandboxd.Invalid("labels", "names that begin with sandboxd are reserved")
		}
	}
	if err := checkNetwork(&req.Network); err != nil {
		return err
	}
	if err := h.checkBridge(*req); err != nil {
		return err
	}
	return fillLimits(&req.Limits, h.limitsOf(req.Runtime))
}

// checkDriver fills in the driver and, where it runs images, the image.
func (h *Host) checkDriver(req *sandboxd.OpenRequest) error {
	named := req.Image != "" || req.OCIRuntime != ""
	if named && !h.cfg.Images {
		return sandboxd.Errorf(sandboxd.ClassForbidden, "this host lets nobody choose an image or an OCI runtime").
			WithHint("start the server with --images any")
	}
	for field, text := range map[string]string{"image": req.Image, "oci_runtime": req.OCIRuntime} {
		if err := checkName(field, text); err != nil {
			return err
		}
	}
	if req.Driver == "" {
		req.Driver = h.driverFor(req.Image, req.OCIRuntime)
	}
	d := h.drivers[req.Driver]
	if d == nil {
		return noDriver()
	}
	images, ok := d.(sandboxd.Images)
	if !ok {
		if named {
			return noImages(req.Driver)
		}
		return nil
	}
	// Kept with the sandbox: another default later is not for it.
	var err error
	req.Image, err = images.ChooseImage(req.Image, req.OCIRuntime)
	return err
}

// checkName judges a name that a driver or an engine gets.
func checkName(field, text string) error {
	if hasControl(text) || strings.ContainsRune(text, ' ') || len(text) > 255 || strings.HasPrefix(text, "-") {
		return sandboxd.Invalid(field, "must have at most 255 printable bytes without spaces")
	}
	return nil
}

func noDriver() error {
	return sandboxd.Invalid("driver", "no such driver works here").WithHint("sandboxd doctor says which do and why others do not")
}

func noImages(driver string) error {
	return sandboxd.Errorf(sandboxd.ClassUnsupported, "the %s driver runs no images", driver).WithHint("the docker driver does; sandboxd doctor says whether it works here")
}

// driverFor answers the driver of a request that names none: the first, or where an
// image or an OCI runtime is named the first that can take it, else the first that
// says why it cannot.
func (h *Host) driverFor(image, ociRuntime string) string {
	chosen := ""
	for _, d := range h.cfg.Drivers {
		images, ok := d.(sandboxd.Images)
		if image == "" && ociRuntime == "" {
			return d.Name()
		}
		if !ok {
			continue
		}
		if _, err := images.ChooseImage(image, ociRuntime); err == nil {
			return d.Name()
		}
		if chosen == "" {
			chosen = d.Name()
		}
	}
	return cmp.Or(chosen, h.cfg.Drivers[0].Name())
}

// checkCommand validates a specification and fills in the defaults, so that two
// specifications that mean the same are the same.
func checkCommand(spec *sandboxd.CommandSpec) error {
	if (len(spec.Argv) == 0) == (spec.Shell == "") {
		return sandboxd.Invalid("argv", "give either argv or shell")
	}
	if spec.ID == "" {
		spec.ID = sandboxd.NewID()
	}
	if !sandboxd.ValidCommandID(spec.ID) {
		return sandboxd.Invalid("command_id", "must be 1 to 64 of A-Z a-z 0-9 . _ - and not begin with '-'")
	}
	if len(spec.Argv) > maxArgs {
		return sandboxd.Invalid("argv", "more than %d arguments", maxArgs)
	}
	if len(spec.Argv) > 0 && spec.Argv[0] == "" {
		return sandboxd.Invalid("argv", "the program's name is empty")
	}
	for _, a := range spec.Argv {
		if err := checkArg("argv", a); err != nil {
			return err
		}
	}
	if err := checkArg("shell", spec.Shell); err != nil {
		return err
	}
	if strings.ContainsRune(spec.Cwd, 0) || len(spec.Cwd) > 4095 {
		return sandboxd.Invalid("cwd", "must be a path of at most 4095 bytes without NUL")
	}
	if err := checkEnv(spec.Env); err != nil {
		return err
	}
	if t := spec.TimeoutS; t != nil && !(*t >= 0 && *t <= 30*86400) {
		return sandboxd.Invalid("timeout_s", "must be between 0 and 30 days")
	}
	if !(spec.NoOutputTimeoutS >= 0 && spec.NoOutputTimeoutS <= 30*86400) {
		return sandboxd.Invalid("no_output_timeout_s", "must be between 0 and 30 days")
	}
	if !(spec.OrphanAfterS >= 0 && spec.OrphanAfterS <= 30*86400) {
		return sandboxd.Invalid("orphan_after_s", "must be between 0 and 30 days")
	}
	switch spec.Wait {
	case "":
		spec.Wait = sandboxd.WaitLeader
	case sandboxd.WaitLeader, sandboxd.WaitPipes:
	default:
		return sandboxd.Invalid("wait", "must be leader or pipes")
	}
	if spec.OutputLimit < 0 || spec.OutputLimit > 1<<40 {
		return sandboxd.Invalid("output_limit", "must be between 0 and 1 TiB")
	}
	l := spec.Limits
	if l.MemoryBytes < 0 || l.MemoryBytes > maxMemory || (l.MemoryBytes > 0 && l.MemoryBytes < 1<<20) {
		return sandboxd.Invalid("limits.memory_bytes", "must be 0 or at least 1 MiB")
	}
	if l.PIDs < 0 || l.PIDs > 1<<20 {
		return sandboxd.Invalid("limits.pids", "must be between 0 and %d", 1<<20)
	}
	if !(l.CPUs >= 0 && l.CPUs <= 1024) {
		return sandboxd.Invalid("limits.cpus", "must be between 0 and 1024")
	}
	return checkTTY(spec.TTY)
}

func checkArg(field, s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return sandboxd.Invalid(field, "must not contain NUL")
	}
	if len(s) > maxEnvBytes {
		return sandboxd.Invalid(field, "longer than %d bytes", maxEnvBytes).WithHint("write it to a file and pass the file's name")
	}
	return nil
}

func checkTTY(t *sandboxd.TTY) error {
	if t != nil && (t.Cols == 0 || t.Rows == 0 || t.Cols > 10000 || t.Rows > 10000) {
		return sandboxd.Invalid("tty", "cols and rows must be between 1 and 10000")
	}
	return nil
}

// checkEnv is the one rule for variables, whoever gives them and for how long: what a
// program can be given. More than a shell can name: npm reads npm_config_@scope:registry.
func checkEnv(env map[string]string) error {
	if len(env) > maxEnv {
		return sandboxd.Invalid("env", "more than %d variables", maxEnv)
	}
	for k, v := range env {
		if k == "" || strings.Contains(k, "=") || hasControl(k) {
			return sandboxd.Invalid("env", "a name is empty or contains '=' or a control character")
		}
		if strings.IndexByte(v, 0) >= 0 || len(k)+len(v) > maxEnvBytes {
			return sandboxd.Invalid("env", "a value contains NUL or is longer than %d bytes", maxEnvBytes)
		}
	}
	return nil
}

func hasControl(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] == 0x7f {
			return true
		}
	}
	return false
}
