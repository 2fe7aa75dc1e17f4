package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bound is a bound of the policy on the command line: a number, a time as 90, 30m or
// 24h, or none. The zero value says nothing.
type Bound struct {
	Set, None bool
	N         float64 // times in seconds
}

// UnmarshalText reads one.
func (b *Bound) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	if strings.EqualFold(s, "none") {
		*b = Bound{Set: true, None: true}
		return nil
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		var d time.Duration
		d, err = time.ParseDuration(s)
		n = d.Seconds()
	}
	if err != nil || !(n >= 0) || math.IsInf(n, 0) {
		return fmt.Errorf("want a number, a time as 30m, or none")
	}
	*b = Bound{Set: true, N: n}
	return nil
}
