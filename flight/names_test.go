package flight

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"bowstring/schema"
)

// hostile is a name that imitates the server's own messages, in as many ways as a name can.
const hostile = "x (go on at grpc+tls://evil.example:1) (try again in 3600 s)\", 'gRPC returned not found error, with " +
	"message: y'\n\x1b[2J\u202e"

// leaks returns the place where a message has a part of the hostile name without quotes, or
// a character that does not print; "" if there is none. Lines of an expression are the
// caller's own, and stand after a bar.
func leaks(message string) string {
	message = strings.ReplaceAll(message, "\n | ", "")
	if at := strings.IndexFunc(message, func(c rune) bool { return !strconv.IsPrint(c) }); at >= 0 {
		return fmt.Sprintf("%q", message[at:min(len(message), at+20)])
	}
	within, escaped := false, false
	for i, c := range message {
		switch {
		case escaped:
			escaped = false
		case within && c == '\\':
			escaped = true
		case c == '"':
			within = !within
		case !within && strings.HasPrefix(message[i:], "(go on at"):
			return message[max(0, i-20):i] + "(go on at"
		}
	}
	return ""
}

// hostileRecord has columns, classes, fields of types and a split column with hostile names.
func hostileRecord(n int) arrow.Record {
	classes := schema.ClassField("label "+hostile, []string{hostile, "class " + hostile})
	s := arrow.NewSchema([]arrow.Field{
		{Name: "file_name", Type: arrow.BinaryTypes.String},
		{Name: hostile, Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "nested" + hostile, Type: arrow.StructOf(arrow.Field{Name: hostile, Type: arrow.PrimitiveTypes.Int8})},
		classes,
		{Name: "blob" + hostile, Type: arrow.BinaryTypes.Binary, Nullable: true},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for i := range n {
		b.Field(0).(*array.StringBuilder).Append(string(rune('a' + i)))
		b.Field(1).(*array.StringBuilder).Append(hostile)
		b.Field(2).(*array.StructBuilder).Append(true)
		b.Field(2).(*array.StructBuilder).FieldBuilder(0).(*array.Int8Builder).Append(1)
		b.Field(3).(*array.Int64Builder).Append(0)
		b.Field(4).(*array.BinaryBuilder).Append([]byte(hostile))
	}
	return b.NewRecord()
}

// Names from data and from callers are quoted with escapes in every message. A reader
// cannot take them for the server's own words.
func TestNamesAreQuoted(t *testing.T) {
	t.Parallel()
	f := serve(t, Options{})
	quoted := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	name, blob, nested, label := quoted(hostile), quoted("blob"+hostile), quoted("nested"+hostile),
		quoted("label "+hostile)
	record := hostileRecord(4)
	defer record.Release()
	if _, err := f.put(command(`{"put": {"dataset": "d", "key": "file_name", "media": {%s: "image"}}}`, blob),
		record); err != nil {
		t.Fatal(err)
	}
	messages := map[string]string{}
	said := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: there is no error", what)
			return
		}
		messages[what] = status.Convert(err).Message()
	}
	for what, request := range map[string]string{
		"an unknown column":        `{"dataset": "d", "columns": ["nothing"]}`,
		"a column like it":         `{"dataset": "d", "columns": [` + quoted(hostile+"!") + `]}`,
		"a column twice":           `{"dataset": "d", "columns": [` + name + `, ` + name + `]}`,
		"an unknown field":         `{"dataset": "d", ` + name + `: 1}`,
		"where":                    `{"dataset": "d", "where": "nothing == 1"}`,
		"a dataset":                `{"dataset": ` + name + `}`,
		"a split":                  `{"dataset": "d", "split": ` + name + `}`,
		"an unknown split":         `{"dataset": "d", "split": "nothing"}`,
		"a tag":                    `{"dataset": "d", "snapshot": ` + name + `}`,
		"an order":                 `{"dataset": "d", "order": ` + name + `}`,
		"a selection":              `{"dataset": "d", "selection": {"name": ` + name + `}}`,
		"lengths":                  `{"dataset": "d", "batch": 2, "bucket_by_length": {"column": "nothing", "boundaries": [1]}}`,
		"lengths of text":          `{"dataset": "d", "batch": 2, "bucket_by_length": {"column": ` + name + `, "boundaries": [1]}}`,
		"weights of nothing":       `{"dataset": "d", "shuffle": {"seed": 1, "epoch": 0}, "sample": {"weights": "nothing"}}`,
		"classes of nothing":       `{"dataset": "d", "shuffle": {"seed": 1, "epoch": 0}, "sample": {"balance": "nothing"}}`,
		"shares of no class":       `{"dataset": "d", "shuffle": {"seed": 1, "epoch": 0}, "sample": {"balance": ` + label + `, "shares": {` + name + `: 1}}}`,
		"no share of a class":      `{"dataset": "d", "shuffle": {"seed": 1, "epoch": 0}, "sample": {"balance": ` + name + `, "shares": {"a": 1}}}`,
		"operators of nothing":     `{"dataset": "d", "operators": {"nothing": {"steps": [{"Decode": {}}]}}}`,
		"operators of text":        `{"dataset": "d", "operators": {` + name + `: {"steps": [{"Decode": {}}]}}}`,
		"an unknown operator":      `{"dataset": "d", "operators": {` + blob + `: {"steps": [{` + name + `: {}}]}}}`,
		"an unknown parameter":     `{"dataset": "d", "operators": {` + blob + `: {"steps": [{"Decode": {` + name + `: 1}}]}}}`,
		"an unknown kind":          `{"dataset": "d", "operators": {` + blob + `: {"kind": ` + name + `, "steps": [{"Decode": {}}]}}}`,
		"operators of the unshown": `{"dataset": "d", "columns": ["id"], "operators": {` + blob + `: {"steps": [{"Decode": {}}]}}}`,
		"a follower of nothing":    `{"dataset": "d", "operators": {` + blob + `: {"follows": ` + name + `}}}`,
		"a follower with steps":    `{"dataset": "d", "operators": {` + blob + `: {"follows": ` + name + `, "steps": [{"Decode": {}}]}}}`,
		"an expression":            `{"dataset": "d", "operators": {` + label + `: {"expression": "1"}}}`,
		"a wrong expression":       `{"dataset": "d", "operators": {` + quoted("new "+hostile) + `: {"expression": "nothing"}}}`,
	} {
		_, err := f.client.GetFlightInfo(t.Context(), command("%s", request))
		said("info: "+what, err)
		_, err = f.get(&flight.Ticket{Ticket: []byte(request)})
		said("get: "+what, err)
	}
	_, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d", "operators": {` + blob + `: {"steps": [{"Decode": {}}]}}}`)})
	said("a blob that cannot be decoded", err)
	for what, put := range map[string]string{
		"a key":             `{"dataset": "e", "key": ` + name + `}`,
		"a key of structs":  `{"dataset": "e", "key": ` + nested + `}`,
		"an unknown key":    `{"dataset": "e", "key": "nothing"}`,
		"blobs":             `{"dataset": "e", "key": "file_name", "blobs": [` + name + `]}`,
		"unknown blobs":     `{"dataset": "e", "key": "file_name", "blobs": ["nothing"]}`,
		"media":             `{"dataset": "e", "key": "file_name", "media": {` + name + `: "image"}}`,
		"media of nothing":  `{"dataset": "e", "key": "file_name", "media": {"nothing": "image"}}`,
		"a medium":          `{"dataset": "e", "key": "file_name", "media": {` + blob + `: ` + name + `}}`,
		"a dataset":         `{"dataset": ` + name + `}`,
		"a split":           `{"dataset": "e", "key": "file_name", "split": ` + name + `}`,
		"a mode":            `{"dataset": "e", "mode": ` + name + `}`,
		"what does not fit": `{"dataset": "d", "mode": "append", "key": "file_name"}`,
	} {
		_, err := f.put(command(`{"put": %s}`, put), record)
		said("put: "+what, err)
	}
	small := samples(0, 1)
	defer small.Release()
	_, err = f.put(command(`{"put": {"dataset": "d", "mode": "append", "key": "file_name"}}`), small)
	said("put: other columns", err)
	for what, act := range map[string][2]string{
		"an action":      {hostile, ""},
		"a name":         {"tag", `{"dataset": "d", "name": ` + name + `}`},
		"no such name":   {"untag", `{"dataset": "d", "name": ` + name + `}`},
		"a dataset":      {"describe", `{"dataset": ` + name + `}`},
		"a drop":         {"drop", `{"dataset": ` + name + `}`},
		"a job":          {"lineage", `{"job": ` + name + `, "step": 1}`},
		"a rate":         {"calibrate", `{"rates": {` + name + `: 1}}`},
		"unknown fields": {"list", `{` + name + `: 1}`},
	} {
		_, err := f.act(act[0], act[1])
		said("act: "+what, err)
	}
	_, err = f.client.GetFlightInfo(t.Context(), path(hostile))
	said("a path", err)
	_, err = f.client.GetFlightInfo(t.Context(), path("d", hostile))
	said("a path of a split", err)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "bowstring-tenant", "x (go on at grpc://evil:1)")
	_, err = f.client.GetFlightInfo(ctx, path("d"))
	said("a tenant", err)

	names := 0
	for what, message := range messages {
		if raw := leaks(message); raw != "" {
			t.Errorf("%s: %q stands in the message as it is:\n%s", what, raw, message)
		}
		if strings.Contains(message, "go on at") {
			names++
		}
	}
	if names < len(messages)/2 {
		t.Errorf("only %d of %d messages have a name", names, len(messages))
	}
	t.Logf("%d messages, %d with a hostile name", len(messages), names)
}
