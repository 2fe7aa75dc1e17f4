package api

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"sandboxd"
)

// Envelope is the body of every error under /v1.
type Envelope struct {
	status int
	retry  sandboxd.Seconds
	cause  error
	Err    EnvelopeError `json:"error"`
}

// EnvelopeError says what went wrong. Callers branch on Code.
type EnvelopeError struct {
	Code      string            `json:"code" doc:"What kind of failure, as invalid_request"`
	Message   string            `json:"message" doc:"One sentence for a person"`
	Retryable bool              `json:"retryable" doc:"The same request may work later"`
	Hint      string            `json:"hint,omitempty" doc:"What to do about it"`
	Field     string            `json:"field,omitempty" doc:"The field at fault"`
	RetryS    sandboxd.Seconds  `json:"retry_s,omitempty" doc:"When a retry makes sense"`
	Ending    *sandboxd.Ending  `json:"ending,omitempty" doc:"Why the thing ended, with code gone"`
	Ceiling   *sandboxd.Ceiling `json:"ceiling,omitempty" doc:"What was reached, with code capacity of an opening"`
}

// Error implements error.
func (e *Envelope) Error() string { return e.Err.Message }

// GetStatus is the HTTP status, for huma.
func (e *Envelope) GetStatus() int { return e.status }

// envelope turns any error into what a caller may see of it.
func envelope(err error) *Envelope {
	var env *Envelope
	if errors.As(err, &env) {
		return env
	}
	class := sandboxd.ClassOf(err)
	env = &Envelope{status: class.HTTPStatus(), cause: err,
		Err: EnvelopeError{Code: string(class), Retryable: class.Retryable()}}
	var e *sandboxd.Error
	switch {
	case errors.As(err, &e):
		env.Err.Message, env.Err.Hint, env.Err.Field, env.Err.Ending = e.Public(), e.Hint, e.Field, e.Ending
		env.retry, env.Err.Ceiling = e.RetryS, e.Ceiling
	case class == sandboxd.ClassUnavailable:
		env.Err.Message = "the request was given up before it was done"
	default:
		env.Err.Message = "something failed inside the server"
		env.Err.Hint = "the server's log has the cause under this answer's X-Request-Id"
	}
	if class == sandboxd.ClassCapacity && env.retry <= 0 {
		env.retry = 1
	}
	env.Err.RetryS = env.retry
	return env
}

// writeError answers err, unless an answer has begun; then it breaks the
// connection, so that half an answer cannot pass for a whole one.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	note(r.Context(), err)
	env := envelope(err)
	if rw, ok := w.(*response); ok && rw.status != 0 {
		panic(http.ErrAbortHandler)
	}
	h := w.Header()
	for _, name := range []string{"Content-Length", "ETag", "Last-Modified", "Cache-Control", "X-File-Mode", "X-File-Mod-Time"} {
		h.Del(name)
	}
	setRetryAfter(h.Set, env)
	h.Set("Content-Type", "application/json")
	w.WriteHeader(env.status)
	_ = json.NewEncoder(w).Encode(env)
}

func setRetryAfter(set func(name, value string), env *Envelope) {
	if env.retry > 0 {
		set("Retry-After", strconv.Itoa(int(math.Ceil(float64(env.retry)))))
	}
}

// frameworkError is what huma makes of its own findings. Its details carry the
// offending value, which is why none of their text is used unless it is known.
func frameworkError(status int, msg string, errs ...error) *Envelope {
	for _, err := range errs {
		var e *sandboxd.Error
		var env *Envelope
		if errors.As(err, &e) || errors.As(err, &env) {
			return envelope(err)
		}
	}
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestTimeout, 0:
		field, text := "body", msg
		for _, err := range errs {
			var d *huma.ErrorDetail
			if errors.As(err, &d) {
				field, text = fieldName(d.Location), d.Message
				if name, ok := missing(text); ok {
					field, text = fieldName(d.Location+"."+name), "it is needed"
				}
				break
			}
		}
		return envelope(sandboxd.Invalid(field, "%s", harmless(text)))
	case http.StatusRequestEntityTooLarge:
		return envelope(&sandboxd.Error{Class: sandboxd.ClassTooLarge, Field: "body", Message: "the body is too large"})
	}
	var cause error
	if len(errs) > 0 {
		cause = errs[0]
	}
	return envelope(cause)
}

// missing finds the field that the framework reports as a fault of its parent.
func missing(text string) (string, bool) {
	name, ok := strings.CutPrefix(text, "expected required property ")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, " to be present")
}

func fieldName(location string) string {
	for _, prefix := range []string{"body.", "query.", "path.", "header."} {
		if rest, ok := strings.CutPrefix(location, prefix); ok {
			location = rest
			break
		}
	}
	if location == "" {
		return "body"
	}
	if len(location) > 100 {
		location = location[:100]
	}
	return strings.ToValidUTF8(location, "?")
}

// harmless passes the framework's texts that speak of the rule and replaces those
// that may quote the value.
func harmless(text string) string {
	for _, prefix := range []string{"expected ", "unexpected property", "unknown query parameter", "required ", "request body is required"} {
		if strings.HasPrefix(text, prefix) {
			return text
		}
	}
	return "is not valid"
}

// The framework has its error constructor in a variable of the process; this is
// the only face that uses it. The constructor with a context exists because the
// cause must reach the request's log line.
var _ = func() bool {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return frameworkError(status, msg, errs...)
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		env := frameworkError(status, msg, errs...)
		if r, _ := humago.Unwrap(ctx); r != nil {
			note(r.Context(), env.cause)
		}
		setRetryAfter(ctx.SetHeader, env)
		return env
	}
	// "ARGV" is an unknown field, not another spelling of argv.
	huma.ValidateStrictCasing = true
	return true
}()
