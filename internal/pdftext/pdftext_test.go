package pdftext

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/leaktest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Argument {
		Main()
	}
	leaktest.Main(m)
}

// file makes a PDF of objects, numbered from 1, of which the first is the catalogue.
func file(trailer string, objects ...string) []byte {
	var b bytes.Buffer
	b.WriteString("%PDF-1.4\n")
	at := make([]int, len(objects))
	for i, o := range objects {
		at[i] = b.Len()
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", i+1, o)
	}
	table := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(objects)+1)
	for _, offset := range at {
		fmt.Fprintf(&b, "%010d 00000 n \n", offset)
	}
	fmt.Fprintf(&b, "trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n", len(objects)+1, trailer, table)
	return b.Bytes()
}

// pages makes one whose pages show these streams.
func pages(trailer string, streams ...string) []byte {
	objects := []string{"<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /FirstChar 32 /LastChar 126 /Widths [" +
		strings.Repeat("500 ", 95) + "] /Encoding /WinAnsiEncoding >>"}
	var kids []string
	for _, s := range streams {
		n := len(objects) + 1
		kids = append(kids, fmt.Sprintf("%d 0 R", n))
		objects = append(objects, fmt.Sprintf("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents %d 0 R /Resources << /Font << /F1 3 0 R >> >> >>", n+1),
			fmt.Sprintf("<< /Length %d >>\nstream\n%s\nendstream", len(s), s))
	}
	objects[1] = fmt.Sprintf("<< /Type /Pages /Count %d /Kids [%s] >>", len(kids), strings.Join(kids, " "))
	return file(trailer, objects...)
}

func TestExtract(t *testing.T) {
	got, err := Extract(t.Context(), pages("/Info << /Title (Größe) /Author (A. N. Other) >>",
		"BT /F1 12 Tf 50 700 Td (First line) Tj 0 -14 Td (second) Tj 60 0 Td (word) Tj ET",
		"", // a page without text is left out
		"BT /F1 12 Tf 50 700 Td [(Ker) -20 (ned)] TJ ET"))
	if err != nil {
		t.Fatal(err)
	}
	want := "Author: A. N. Other\n\n--- Page 1 ---\nFirst line\nsecond word\n\n--- Page 3 ---\nKerned"
	if !strings.HasSuffix(got, want) || !strings.HasPrefix(got, "Title: ") {
		t.Errorf("%q, want it to end with %q", got, want)
	}
}

// What cannot be read says why; nothing takes the asking process with it.
func TestWhatIsNoText(t *testing.T) {
	whole := pages("", "BT /F1 12 Tf 50 700 Td (text) Tj ET")
	for name, row := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":         {nil, ""},
		"its head alone":  {[]byte("%PDF-1.7"), ""},
		"something else":  {[]byte(strings.Repeat("no pdf ", 100)), ""},
		"cut":             {whole[:len(whole)/2], ""},
		"no pages":        {file("", "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Count 0 /Kids [] >>"), noPages},
		"no text":         {pages("", "0 0 m 10 10 l S"), noText},
		"far too many":    {file("", "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Count 2000000000 /Kids [] >>"), "more than"},
		"its own parent":  {file("", "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Count 5 /Kids [2 0 R] >>"), ""},
		"its own length":  {file("", "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Count 1 /Kids [3 0 R] >>", "<< /Type /Page /Parent 2 0 R /Contents 4 0 R >>", "<< /Length 4 0 R >>\nstream\nx\nendstream"), ""},
		"encrypted":       {pages("/ID [(a) (a)] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O ("+strings.Repeat("o", 32)+") /U ("+strings.Repeat("u", 32)+") >>", "BT ET"), encrypted},
		"deep":            {file("/Info "+strings.Repeat("[", 200_000), "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Count 1 /Kids [] >>"), ""},
		"a flood of text": {pages("", "BT /F1 12 Tf "+strings.Repeat("(x) Tj ", 300_000)+" ET"), "-"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			text, err := Extract(t.Context(), row.data)
			if row.want == "-" {
				if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
					t.Fatal(err)
				}
				return
			}
			if sandboxd.ClassOf(err) != sandboxd.ClassInvalid || !strings.Contains(err.Error(), row.want) {
				t.Fatalf("%.80q, %v, want %q", text, err, row.want)
			}
			if took := time.Since(began); took > longest+5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestACallerWhoGoesEndsTheParser(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Extract(ctx, pages("", "BT ET")); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
