package client

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"sandboxd"
)

// wireError is the error of the one envelope.
type wireError struct {
	Code    string            `json:"code"`
	Message string            `json:"message"`
	Hint    string            `json:"hint"`
	Field   string            `json:"field"`
	RetryS  sandboxd.Seconds  `json:"retry_s"`
	Ending  *sandboxd.Ending  `json:"ending"`
	Ceiling *sandboxd.Ceiling `json:"ceiling"`
}

// largestError bounds what is read of an error that may come from any server.
const largestError = 256 << 10

func decodeError(res *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(res.Body, largestError))
	var env struct {
		Error wireError `json:"error"`
	}
	if json.Unmarshal(data, &env) != nil || env.Error.Code == "" {
		return sandboxd.Errorf(sandboxd.ClassOfStatus(res.StatusCode), "the server answered %s", res.Status).
			WithHint("is this the address of a sandboxd server?")
	}
	e := env.Error.error(res.StatusCode)
	if e.RetryS == 0 {
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
			e.RetryS = sandboxd.Seconds(s)
		}
	}
	return e
}

// error gives the wire's error back its class: the code when it is one, else the
// status of the answer, which is 0 for an error inside a stream.
func (w wireError) error(status int) *sandboxd.Error {
	class := sandboxd.Class(w.Code)
	if class.HTTPStatus() == 500 && class != sandboxd.ClassInternal { // not a class
		class = sandboxd.ClassOfStatus(status)
	}
	message := w.Message
	if w.Field != "" {
		message = strings.TrimPrefix(message, w.Field+": ")
	}
	return &sandboxd.Error{Class: class, Field: w.Field, Message: message, Hint: w.Hint, RetryS: w.RetryS, Ending: w.Ending, Ceiling: w.Ceiling}
}
