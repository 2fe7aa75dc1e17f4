package api

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"sandboxd"
	"sandboxd/internal/api/bounded"
)

const (
	jsonBody = 1 << 20 // of a JSON body
	execBody = 8 << 20 // of one that carries stdin
	// of one that carries files: their 8 MiB in base64, and the rest
	batchBody = 12 << 20
)

// strictBody reads the whole JSON body before the framework does and refuses what
// the framework would let pass or would quote: bytes that are not UTF-8, NUL,
// duplicate fields, numbers that do not survive. It also fixes the Content-Type,
// because a JSON body is read whatever the caller called it.
func strictBody(ctx huma.Context, next func(huma.Context)) {
	op := ctx.Operation()
	if op.RequestBody == nil {
		next(ctx)
		return
	}
	r, w := humago.Unwrap(ctx)
	limit := op.MaxBodyBytes - 1 // the framework refuses at its limit, not beyond it
	data, err := readBody(r, limit)
	if err == nil && len(data) > 0 {
		err = checkJSON(data)
	}
	if err != nil {
		writeError(w, r, err)
		return
	}
	r.Header.Set("Content-Type", "application/json")
	r.Body = io.NopCloser(bytes.NewReader(data))
	next(ctx)
}

// readBody reads all of a request's body, at most limit bytes.
func readBody(r *http.Request, limit int64) ([]byte, error) {
	data, err := bounded.Read(r.Body, r.ContentLength, limit)
	if err == bounded.ErrTooLarge {
		return nil, &sandboxd.Error{Class: sandboxd.ClassTooLarge, Field: "body",
			Message: "it is larger than " + strconv.FormatInt(limit, 10) + " bytes"}
	}
	return data, err
}

// maxDepth is deeper than any request of ours.
const maxDepth = 32

// checkJSON walks the tokens of one JSON value. Errors name the field and never
// its value.
func checkJSON(data []byte) error {
	if !utf8.Valid(data) {
		return sandboxd.Invalid("body", "it is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := checkValue(dec, nil); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return sandboxd.Invalid("body", "something follows the JSON value")
	}
	return nil
}

func checkValue(dec *json.Decoder, at []string) error {
	tok, err := dec.Token()
	if err != nil {
		return malformed(dec)
	}
	if len(at) > maxDepth {
		return sandboxd.Invalid("body", "it is nested deeper than %d levels", maxDepth)
	}
	switch v := tok.(type) {
	case string:
		if strings.IndexByte(v, 0) >= 0 {
			return sandboxd.Invalid(joinField(at), "it has a NUL character")
		}
	case json.Number:
		// Beyond 2^53 a number is not the one the caller wrote for half of all clients.
		if f, err := v.Float64(); err != nil || math.Abs(f) > 1<<53 {
			return sandboxd.Invalid(joinField(at), "the number is out of range")
		}
	case json.Delim:
		if v == '[' {
			return checkArray(dec, at)
		}
		return checkObject(dec, at)
	}
	return nil
}

func checkArray(dec *json.Decoder, at []string) error {
	for i := 0; dec.More(); i++ {
		if err := checkValue(dec, append(at, "["+strconv.Itoa(i)+"]")); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return malformed(dec)
	}
	return nil
}

func checkObject(dec *json.Decoder, at []string) error {
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return malformed(dec)
		}
		name, _ := tok.(string)
		field := append(at, name)
		if strings.IndexByte(name, 0) >= 0 {
			return sandboxd.Invalid(joinField(at), "the name of a field has a NUL character")
		}
		if seen[name] {
			return sandboxd.Invalid(joinField(field), "the field is there twice")
		}
		seen[name] = true
		if err := checkValue(dec, field); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return malformed(dec)
	}
	return nil
}

func malformed(dec *json.Decoder) error {
	return sandboxd.Invalid("body", "it is not valid JSON near byte %d", dec.InputOffset())
}

// joinField spells a path as the framework does: limits.cpus, argv[2].
func joinField(at []string) string {
	var b strings.Builder
	for _, part := range at {
		if b.Len() > 0 && !strings.HasPrefix(part, "[") {
			b.WriteByte('.')
		}
		b.WriteString(part)
	}
	return fieldName(b.String())
}
