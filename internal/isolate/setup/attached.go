package setup

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// ReadMessage reads a message of WriteMessage and nothing after it.
func ReadMessage(r io.Reader, v any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > MaxSpec {
		return errors.New("the message is too long")
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// WriteMessage writes v as JSON after its length, in one Write.
func WriteMessage(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > MaxSpec {
		return errors.New("the message is too long")
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// Settle is what is left to do for an init in a container: the engine has made
// the namespaces, the root and the user. It changes every thread.
func Settle(spec Attached) (step string, err error) {
	if unix.Getuid() == 0 {
		return "look at the user", errors.New("a sandbox may not be root")
	}
	if len(spec.Seccomp) == 0 {
		return "", nil
	}
	if err := loadFilter(spec.Seccomp, unix.SECCOMP_FILTER_FLAG_TSYNC); err != nil {
		return "seccomp", fmt.Errorf("%w; the engine must set no_new_privs", err)
	}
	return "", nil
}
