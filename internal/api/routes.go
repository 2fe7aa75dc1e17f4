package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"sandboxd"
)

// route is one row of the table: what it is, and how it is put on the mux.
type route struct {
	op  huma.Operation
	add func(*face, huma.API, huma.Operation)
}

// routes is the one table of /v1. Every row needs the listener's secret.
func routes() []route {
	const (
		box  = "/v1/sandboxes/{id}"
		cmd  = box + "/commands/{cid}"
		file = box + "/files"
	)
	return []route{
		{op("POST", "/v1/sandboxes", "open-sandbox", "Create the sandbox of a key or attach to it"), typed((*face).open)},
		{op("GET", "/v1/sandboxes", "list-sandboxes", "List sandboxes, oldest first"), typed((*face).list)},
		{op("GET", box, "get-sandbox", "Get a sandbox"), typed((*face).get)},
		{op("DELETE", box, "delete-sandbox", "Delete environment and files, or with keep=files close"), typed((*face).remove)},
		{op("POST", box+"/start", "start-sandbox", "Start the environment"), typed((*face).start)},
		{op("POST", box+"/stop", "stop-sandbox", "Stop the environment and keep the files"), typed((*face).stop)},
		{op("POST", box+"/close", "close-sandbox", "Stop, and count for no ceiling: open no more"), typed((*face).closeSandbox)},
		{op("GET", box+"/awake", "awake", "What keeps the sandbox awake, and when it is closed"), typed((*face).awake)},
		{op("POST", box+"/renew", "renew", "Note a request of the sandbox's owner, which winds its lease up"), typed((*face).renew)},
		{op("GET", box+"/holds", "list-holds", "List the holds in force"), typed((*face).holds)},
		{op("POST", box+"/holds", "hold", "Keep the sandbox awake for a time; the id of a hold that is there replaces it"), typed((*face).hold)},
		{op("DELETE", box+"/holds/{hold}", "release", "End a hold; one that is not there is no error"), typed((*face).release)},
		{op("GET", box+"/variables", "list-variables", "List the names of the variables that every command gets"), typed((*face).variableNames)},
		{op("PUT", box+"/variables", "set-variables", "Replace the variables that every command gets from now on"), typed((*face).setVariables)},
		{op("GET", box+"/resources", "resources", "What the processes of the sandbox use now"), typed((*face).resources)},
		{op("GET", "/v1/policy", "get-policy", "What sandboxes may have, and how long what nobody uses lasts"), typed((*face).policy)},
		{op("PUT", "/v1/policy", "change-policy", "Change the policy: "+policyDoc), raw((*face).changePolicy, spec{
			takes: "application/json", answers: "application/json", schema: sandboxd.Policy{}})},
		{op("GET", box+"/network", "network-activity", "What the sandbox's proxy let through and what it refused, and why"), typed((*face).network)},
		{op("GET", "/v1/runtimes", "list-runtimes", "List the catalogue"), typed((*face).runtimes)},

		{op("GET", "/v1/images", "list-images", "List the images of every driver; the images are the administrator's alone"), typed((*face).listImages)},
		{op("PUT", "/v1/images", "import-image", "Make an image of a root file system: "+importDoc), raw((*face).importImage, spec{
			query: []param{imageParam, driverParam, {"max_entries", "integer", "Refuse more entries, default 1000000"},
				{"max_bytes", "integer", "Refuse more bytes, default 16 GiB"}},
			takes: tarType, answers: "application/json", schema: sandboxd.Image{}, status: "201"})},
		{op("DELETE", "/v1/images", "remove-image", "Remove an image that no sandbox has"), raw((*face).removeImage, spec{
			query: []param{imageParam, driverParam}, status: "204"})},
		{op("POST", "/v1/images/pull", "pull-image", "Bring an image from its registry: "+pullDoc), typed((*face).pullImage)},

		{op("POST", box+"/exec", "exec", "Run a command and answer its output: "+execDoc), typed((*face).exec)},
		{op("POST", box+"/commands", "start-command", "Start a command and answer at once"), typed((*face).startCommand)},
		{op("GET", box+"/commands", "list-commands", "List commands, oldest first"), typed((*face).listCommands)},
		{op("GET", cmd, "get-command", "Get a command"), typed((*face).getCommand)},
		{op("POST", cmd+"/stop", "stop-command", "End the whole tree: SIGTERM, after grace_s SIGKILL"), typed((*face).stopCommand)},
		{op("POST", cmd+"/signal", "signal-command", "Send a signal"), typed((*face).signalCommand)},
		{op("POST", cmd+"/resize", "resize-command", "Set the size of the terminal"), typed((*face).resizeCommand)},
		{op("GET", cmd+"/output", "command-output", "Read output from an offset: "+frameDoc), raw((*face).output, spec{
			query:   []param{{"offset", "integer", "First byte wanted, default 0"}, {"follow", "boolean", "Wait for more until the ending"}},
			answers: ndjson})},
		{op("POST", cmd+"/stdin", "write-stdin", "Send the body to the command"), raw((*face).stdin, spec{
			query: []param{{"eof", "boolean", "Close stdin after it"}}, takes: octets, status: "204"})},
		{op("GET", box+"/terminal", "terminal", "A terminal over a WebSocket: "+terminalDoc), raw((*face).terminal, spec{
			query: []param{{"command_id", "string", "Attach to this command instead of starting a shell"},
				{"cols", "integer", "Columns, default 80"}, {"rows", "integer", "Rows, default 24"}}, status: "101"})},

		{op("GET", box+"/ports", "list-ports", "List the TCP ports that listen inside, with their processes"), typed((*face).ports)},
		{op("GET", box+"/ports/{port}/connect", "connect-port", "Connect to a TCP port: "+connectDoc), raw((*face).connect, spec{status: "101"})},

		{op("GET", file, "list-files", "List a directory"), raw((*face).listFiles, spec{
			query: []param{pathParam, {"recursive", "boolean", "List deeper levels too"}, {"depth", "integer", "Levels, with recursive"},
				{"max", "integer", "Most entries, default 100000"}}, answers: "application/json", schema: listing{}})},
		{op("PUT", file, "write-file", "Write a file atomically; If-Match and If-None-Match: * are conditions"), raw((*face).writeFile, spec{
			query: []param{pathParam, {"synced", "boolean", "Answer after the bytes survive a power cut"}, {"append", "boolean", "Add to the end"},
				{"executable", "boolean", "Give a new file its execute bits"}}, takes: octets, answers: "application/json", schema: sandboxd.Entry{}})},
		{op("DELETE", file, "remove-file", "Remove a file, a link or a whole tree"), raw((*face).removeFile, spec{
			query: []param{pathParam}, status: "204"})},
		{op("GET", file+"/tree", "tree", "List breadth first, at most 6 levels and 2000 entries"), raw((*face).tree, spec{
			query: []param{pathParam}, answers: "application/json", schema: listing{}})},
		{op("GET", file+"/walk", "walk", `Stream every entry, one JSON object a line, last {"end":{"incomplete":false}}`), raw((*face).walk, spec{
			query: []param{pathParam}, answers: ndjson})},
		{op("GET", file+"/stat", "stat", "Describe one entry; a link at the end is not followed"), raw((*face).stat, spec{
			query: []param{pathParam}, answers: "application/json", schema: sandboxd.Entry{}})},
		{op("GET", file+"/content", "read-file", "Read a file; ranges and conditions as HTTP has them"), raw((*face).content, spec{
			query: []param{pathParam}, answers: octets})},
		{op("POST", file+"/mkdir", "mkdir", "Make a directory and its parents"), raw((*face).mkdir, spec{
			query: []param{pathParam}, status: "204"})},
		{op("POST", file+"/rename", "rename", "Move an entry"), typed((*face).rename)},
		{op("GET", file+"/tar", "tar-out", "Stream a directory as a tar"), raw((*face).tarOut, spec{
			query: []param{pathParam}, answers: tarType})},
		{op("GET", file+"/zip", "zip-out", "Stream a directory as a zip"), raw((*face).zipOut, spec{
			query: []param{pathParam}, answers: zipType})},
		{op("PUT", file+"/tar", "tar-in", "Unpack a tar into a directory"), raw((*face).tarIn, spec{
			query: []param{pathParam, {"max_entries", "integer", "Refuse more entries"}, {"max_bytes", "integer", "Refuse more bytes"}},
			takes: tarType, answers: "application/json", schema: sandboxd.TarResult{}})},
		{op("GET", file+"/glob", "glob", "Find entries by a pattern of their paths: "+globDoc), raw((*face).glob, spec{
			query: []param{pathParam, {"pattern", "string", "As **/*.go, matched with the path below the directory"}, skipParam,
				{"max", "integer", "Most entries, default 10000"}, timeParam}, answers: "application/json", schema: listing{}})},
		{op("GET", file+"/grep", "grep", "Search the content of files: "+grepDoc), raw((*face).grep, spec{
			query: []param{pathParam, {"pattern", "string", "An RE2 expression that a part of a line matches"},
				{"literal", "boolean", "The pattern is plain text"}, {"ignore_case", "boolean", "Take upper and lower case for the same"},
				{"glob", "string", "Only files that match, by path, or by name when it has no slash"}, skipParam,
				{"before", "integer", "Lines before a match, at most 20"}, {"after", "integer", "Lines after it"}, {"context", "integer", "Both"},
				{"max", "integer", "Most matches, default 1000"}, {"max_bytes", "integer", "Most bytes to read, default 256 MiB"}, timeParam},
			answers: "application/json", schema: grepAnswer{}})},
		{op("POST", file+"/edit", "edit-file", "Replace exact text in a file, atomically"), typed((*face).edit)},
		{op("POST", file+"/read", "read-files", "Read many files, at most 1000 and 8 MiB together"), typed((*face).readFiles)},
		{op("POST", file+"/write", "write-files", "Write many files, one after the other, at most 1000 and 8 MiB together"), typed((*face).writeFiles)},
		{op("GET", file+"/upload", "upload-state", "How far an upload is"), raw((*face).uploadState, spec{
			query: []param{pathParam, uploadParam}, answers: "application/json", schema: uploadAnswer{}})},
		{op("PUT", file+"/upload", "upload", "Send a piece of a file that can be resumed: "+uploadDoc), raw((*face).upload, spec{
			query: []param{pathParam, uploadParam, {"synced", "boolean", "Answer after the bytes survive a power cut"},
				{"executable", "boolean", "Give a new file its execute bits"}}, takes: octets, answers: "application/json", schema: uploadAnswer{}})},
		{op("GET", file+"/watch", "watch", "Follow what changes in a directory and below: "+watchDoc), raw((*face).watch, spec{
			query: []param{pathParam}, answers: eventStream})},
		{op("GET", box+"/usage", "usage", "Measure the workspace"), typed((*face).usage)},
	}
}

const (
	ndjson = "application/x-ndjson"
	octets = "application/octet-stream"
)

func op(method, path, id, summary string) huma.Operation {
	title, more, _ := strings.Cut(summary, ": ")
	return huma.Operation{Method: method, Path: path, OperationID: id, Summary: title, Description: more,
		Security: []map[string][]string{{"secret": {}}}, RejectUnknownQueryParameters: true, BodyReadTimeout: -1,
		MaxBodyBytes: jsonBody + 1}
}

// typed is a route whose input and output huma decodes, checks and describes.
func typed[I, O any](handle func(*face, context.Context, *I) (*O, error)) func(*face, huma.API, huma.Operation) {
	return func(f *face, api huma.API, op huma.Operation) {
		switch op.OperationID {
		case "exec":
			op.MaxBodyBytes = execBody + 1
			// The framework cannot see what a stream answers.
			op.Responses = map[string]*huma.Response{"200": {Description: "The output, or in the background the command",
				Content: map[string]*huma.MediaType{
					"application/json": {Schema: huma.SchemaFromType(api.OpenAPI().Components.Schemas, typeOf(Result{}))},
					ndjson:             {Schema: &huma.Schema{Type: "string"}}}}}
		case "pull-image":
			op.Responses = map[string]*huma.Response{"200": {Description: "How far it is, and last the image",
				Content: map[string]*huma.MediaType{ndjson: {Schema: huma.SchemaFromType(api.OpenAPI().Components.Schemas, typeOf(PullLine{}))}}}}
		case "start-command", "edit-file":
			op.MaxBodyBytes = execBody + 1
		case "write-files":
			op.MaxBodyBytes = batchBody + 1
		}
		huma.Register(api, op, func(ctx context.Context, in *I) (*O, error) { return handle(f, ctx, in) })
	}
}

// param is a query parameter of a raw route.
type param struct{ name, kind, doc string }

var (
	pathParam   = param{"path", "string", "Relative to the workspace; any bytes, percent-encoded"}
	skipParam   = param{"skip_hidden", "boolean", "Leave out names that begin with a dot, and what is below"}
	timeParam   = param{"time_s", "integer", "Most seconds to search, default 20, at most 60"}
	imageParam  = param{"name", "string", "Name of the image, as tools or tools:1"}
	driverParam = param{"driver", "string", "Driver whose image it is, default the first that suits"}
	uploadParam = param{"upload", "string", "Id of the upload, of the caller's choice"}
)

const (
	policyDoc = `what is absent stays, null takes a bound away, an unknown field is an error; it is checked as a whole, and durable`
	globDoc   = `* and ? stand for any characters of one name, [a-z] for one of a class, {a,b} for either, ** for any number of names. Truncated says that a bound was met`
	grepDoc   = `in name order, a match for each line. Links are not followed; files with a NUL byte are left out. Truncated says that a bound was met: of matches, bytes, time, or 4 MiB of text`
)

// spec describes a raw route for the document. schema is a value of the type that
// it answers as JSON.
type spec struct {
	query   []param
	takes   string
	answers string
	schema  any
	status  string
}

// raw is a route that streams: a plain handler, whose error is answered as on
// every other route.
func raw(handle func(*face, http.ResponseWriter, *http.Request, url.Values) error, s spec) func(*face, huma.API, huma.Operation) {
	return func(f *face, api huma.API, op huma.Operation) {
		s.document(api, &op)
		known := make([]string, 0, len(s.query))
		for _, p := range s.query {
			known = append(known, p.name)
		}
		f.mux.HandleFunc(op.Method+" "+op.Path, func(w http.ResponseWriter, r *http.Request) {
			query, err := parseQuery(r, known)
			if err == nil {
				err = handle(f, w, r, query)
			}
			if err != nil {
				writeError(w, r, err)
			}
		})
	}
}

func parseQuery(r *http.Request, known []string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, sandboxd.Invalid("query", "it is not well-formed")
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return nil, sandboxd.Invalid(fieldName(name), "unknown query parameter")
		}
		if len(values) > 1 {
			return nil, sandboxd.Invalid(name, "the parameter is there twice")
		}
	}
	return query, nil
}

func (s spec) document(api huma.API, op *huma.Operation) {
	schemas := api.OpenAPI().Components.Schemas
	for _, p := range []param{{name: "id", kind: "string"}, {name: "cid", kind: "string"}, {name: "port", kind: "integer"}} {
		if strings.Contains(op.Path, "{"+p.name+"}") {
			op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: "path", Required: true, Schema: &huma.Schema{Type: p.kind}})
		}
	}
	for _, p := range s.query {
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: "query", Description: p.doc, Schema: &huma.Schema{Type: p.kind}})
	}
	binary := &huma.Schema{Type: "string", Format: "binary"}
	if s.takes != "" {
		op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{s.takes: {Schema: binary}}}
	}
	answer := &huma.Response{Description: "OK"}
	if s.answers != "" {
		media := &huma.MediaType{Schema: binary}
		if s.schema != nil {
			media.Schema = huma.SchemaFromType(schemas, typeOf(s.schema))
		}
		answer.Content = map[string]*huma.MediaType{s.answers: media}
	}
	status := s.status
	if status == "" {
		status = "200"
	}
	failure := huma.SchemaFromType(schemas, typeOf(Envelope{}))
	op.Responses = map[string]*huma.Response{status: answer,
		"default": {Description: "Error", Content: map[string]*huma.MediaType{"application/json": {Schema: failure}}}}
	api.OpenAPI().AddOperation(op)
}

// register puts every route on the mux and answers the OpenAPI document.
func (f *face) register() []byte {
	document := &huma.OpenAPI{OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "sandboxd", Version: "v1",
			Description: "Sandboxes for code that nobody has read yet. Every error is one envelope; callers branch on its code."},
		Components: &huma.Components{
			Schemas:         huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
			SecuritySchemes: map[string]*huma.SecurityScheme{"secret": {Type: "http", Scheme: "bearer"}}},
	}
	api := humago.New(f.mux, huma.Config{OpenAPI: document, DefaultFormat: "application/json",
		Formats: map[string]huma.Format{"application/json": huma.DefaultJSONFormat}})
	api.UseMiddleware(strictBody)
	for _, row := range routes() {
		row.add(f, api, row.op)
	}
	out, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		panic("api: the OpenAPI document does not marshal: " + err.Error())
	}
	return append(out, '\n')
}
