package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write api/openapi.json anew")

const golden = "../../api/openapi.json"

func TestTheDocumentInTheRepositoryIsTheOneServed(t *testing.T) {
	f := newFace(Config{}, controlListener, defaultPace())
	if *update {
		if err := os.WriteFile(golden, f.spec, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, f.spec) {
		t.Fatal("api/openapi.json is not what the server serves; go test ./internal/api -run Document -update writes it anew")
	}
}

func TestTheDocumentListsEveryRoute(t *testing.T) {
	f := newFace(Config{}, controlListener, defaultPace())
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Security    []map[string][]string
			Responses   map[string]any
		}
	}
	if err := json.Unmarshal(f.spec, &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Fatalf("version %q", doc.OpenAPI)
	}
	listed := 0
	for _, methods := range doc.Paths {
		listed += len(methods)
	}
	if listed != len(routes()) {
		t.Errorf("the document has %d operations, the table %d", listed, len(routes()))
	}
	for _, row := range routes() {
		got, ok := doc.Paths[row.op.Path][strings.ToLower(row.op.Method)]
		if !ok {
			t.Errorf("%s %s is not in the document", row.op.Method, row.op.Path)
			continue
		}
		if got.OperationID != row.op.OperationID || len(got.Security) == 0 || got.Responses["default"] == nil {
			t.Errorf("%s %s is described as %+v", row.op.Method, row.op.Path, got)
		}
	}
}
