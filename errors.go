package sandboxd

import (
	"context"
	"errors"
	"fmt"
)

// Class says what kind of failure an error is. It is what callers branch on; the
// text is for people.
type Class string

// The classes. Each has exactly one HTTP status (see HTTPStatus), so that an
// error keeps its class over any number of hops.
const (
	ClassInvalid      Class = "invalid_request" // the request is wrong and stays wrong
	ClassUnauthorized Class = "unauthorized"    // no or a wrong secret
	ClassForbidden    Class = "forbidden"       // known caller, not allowed
	ClassNotFound     Class = "not_found"       // never existed, or not for this caller
	ClassConflict     Class = "conflict"        // the present state forbids it
	ClassGone         Class = "gone"            // existed and ended; Ending says why
	ClassPrecondition Class = "precondition_failed"
	ClassTooLarge     Class = "too_large"
	ClassRange        Class = "range_not_satisfiable"
	ClassBusy         Class = "busy"     // the same request may work in a moment
	ClassCapacity     Class = "capacity" // a ceiling is reached; the message says what holds the places
	ClassUnsupported  Class = "unsupported"
	ClassUnavailable  Class = "unavailable" // something this depends on does not answer
	ClassNoSpace      Class = "no_space"    // disk or quota is full; nothing was half-written
	ClassInternal     Class = "internal"
)

// classTable is the one table by which classes travel over HTTP.
var classTable = []struct {
	class     Class
	status    int
	retryable bool
}{
	{ClassInvalid, 400, false},
	{ClassUnauthorized, 401, false},
	{ClassForbidden, 403, false},
	{ClassNotFound, 404, false},
	{ClassConflict, 409, false},
	{ClassGone, 410, false},
	{ClassPrecondition, 412, false},
	{ClassTooLarge, 413, false},
	{ClassRange, 416, false},
	{ClassBusy, 423, true},
	{ClassCapacity, 429, true},
	{ClassInternal, 500, false},
	{ClassUnsupported, 501, false},
	{ClassUnavailable, 503, true},
	{ClassNoSpace, 507, false},
}

// HTTPStatus is the status code that carries c.
func (c Class) HTTPStatus() int {
	for _, row := range classTable {
		if row.class == c {
			return row.status
		}
	}
	return 500
}

// Retryable says whether the same request may succeed later without a change.
func (c Class) Retryable() bool {
	for _, row := range classTable {
		if row.class == c {
			return row.retryable
		}
	}
	return false
}

// ClassOfStatus is the inverse of HTTPStatus; an unknown status is ClassInternal
// when it is 5xx and ClassInvalid otherwise.
func ClassOfStatus(status int) Class {
	for _, row := range classTable {
		if row.status == status {
			return row.class
		}
	}
	if status >= 400 && status < 500 {
		return ClassInvalid
	}
	return ClassInternal
}

// Error is the error type of every contract in this package.
type Error struct {
	Class   Class
	Field   string   // the request field at fault, never its value
	Message string   // one sentence for a person, without secrets and host paths
	Hint    string   // what to do about it
	RetryS  Seconds  // when a retry makes sense; 0 means not stated
	Ending  *Ending  // why the thing ended, for ClassGone
	Ceiling *Ceiling // what was reached, for ClassCapacity of an opening
	Err     error    // the wrapped cause, for logs; never shown to callers
}

func (e *Error) Error() string {
	s := e.Message
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Public is the text that may leave the process: field and message, no cause.
func (e *Error) Public() string {
	if e.Field != "" {
		return e.Field + ": " + e.Message
	}
	return e.Message
}

// Errorf makes an error of a class without a cause. All of its text is shown to
// callers: use Wrap for what must not be.
func Errorf(class Class, format string, args ...any) *Error {
	return &Error{Class: class, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an error of a class whose cause is logged but not shown.
func Wrap(class Class, cause error, format string, args ...any) *Error {
	return &Error{Class: class, Message: fmt.Sprintf(format, args...), Err: cause}
}

// Invalid is a ClassInvalid error that names the field and not its value.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Class: ClassInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// WithHint returns e with a remedy attached.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// ClassOf is the class of err: that of the first *Error in its chain, otherwise
// ClassUnavailable for a context error and ClassInternal for anything else.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return ClassUnavailable
	}
	return ClassInternal
}
