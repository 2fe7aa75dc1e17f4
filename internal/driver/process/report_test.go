package process

import (
	"os"
	"strings"
	"testing"

	"sandboxd/internal/isolate/setup"
)

// The init that wrote its report still has the pipe open when the host reads it.
func TestAReportIsHeardBeforeThePipeEnds(t *testing.T) {
	for _, c := range []struct {
		report setup.Report
		want   string
	}{
		{setup.Report{}, ""},
		{setup.Report{Step: "pivot", Error: "no way"}, `step "pivot"`},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		if _, err := w.Write(c.report.Encode()); err != nil {
			t.Fatal(err)
		}
		err = (&launch{ready: r}).await(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c.report, err)
		}
	}
}
