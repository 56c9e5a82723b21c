package flight

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"bowstring/flight/audit"
)

// lines reads an audit log.
func lines(t *testing.T, path string) (list []audit.Event) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e audit.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// The record has the caller, the action and the method. It has nothing of the request's
// values or of the result.
func TestAudit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(audit.Options{Path: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r := serveRules(t, wrongRules, Options{Audit: log})
	root, alice := r.as("root"), r.as("alice")
	rec := samples(0, 100)
	defer rec.Release()
	if o := root.put(command(`{"put": {"dataset": "shared", "key": "file_name", "source": "s3cret"}}`),
		rec); o.err != nil {
		t.Fatal(o.err)
	}
	got := lines(t, file) // before the log is closed: a change is on disk when the client has its answer
	if len(got) != 2 || got[0].Phase != audit.Begin || got[1].Phase != audit.Done || got[1].Event != audit.Write ||
		got[1].Principal != "root" ||
		got[1].Method != "DoPut" || got[1].Snapshot != 1 || got[1].Rows != 100 || got[1].Bytes == 0 ||
		got[0].Call != got[1].Call {
		t.Fatalf("%+v", got)
	}
	read := alice.get(`{"dataset": "shared", "where": "label == 3 or label == 1147114711"}`)
	alice.get(`{"dataset": "zzz1"}`)
	if o := root.act("drop", `{"dataset": "shared", "snapshot": 1}`); o.err != nil {
		t.Fatal(o.err)
	}
	if err := r.server.Shutdown(t.Context()); err != nil { // reads of ended calls are in the queue then
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]audit.Event{}
	for _, e := range lines(t, file)[2:] {
		seen[e.Event+e.Phase] = e
	}
	if e := seen[audit.Read+audit.Done]; e.Principal != "alice" || e.Method != "DoGet" || e.Dataset != "shared" || e.Snapshot != 1 ||
		e.Rows != read.rows || e.Bytes < read.bytes ||
		e.Rule != `rule "alice" on line 4` || e.Code != "OK" || e.Plan == "" || e.Peer == "" {
		t.Errorf("%+v", e)
	}
	if e := seen[audit.Read+audit.Begin]; e.Principal != "alice" || e.Dataset != "shared" || e.Snapshot != 1 ||
		e.Plan == "" || e.Call != seen[audit.Read+audit.Done].Call || e.Rows != 0 {
		t.Errorf("%+v", e)
	}
	if e := seen[audit.Deny]; e.Principal != "alice" || e.Dataset != "zzz1" || e.Code != "NotFound" {
		t.Errorf("%+v", e)
	}
	if e := seen[audit.Drop+audit.Done]; e.Principal != "root" || e.Method != "DoAction/drop" || e.Snapshot != 1 {
		t.Errorf("%+v", e)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"1147114711", "s3cret", "where", "file_name"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the record says %q", secret)
		}
	}
}

// An action that cannot be recorded is not done.
func TestAuditFails(t *testing.T) {
	log, err := audit.Open(audit.Options{Path: filepath.Join(t.TempDir(), "audit"),
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := serveRules(t, wrongRules, Options{Audit: log})
	root := r.as("root")
	rec := samples(0, 10)
	defer rec.Release()
	if o := root.put(command(`{"put": {"dataset": "shared", "key": "file_name"}}`), rec); o.err != nil {
		t.Fatal(o.err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, root.act("drop", `{"dataset": "shared"}`).err, codes.Unavailable, "nothing was done")
	wantCode(t, root.put(command(`{"put": {"dataset": "other", "key": "file_name"}}`), rec).err, codes.Unavailable,
		"nothing was done")
	wantCode(t, root.put(command(`{"selection": {"dataset": "shared"}}`), ints("position", 1)).err, codes.Unavailable,
		"nothing was done")
	wantCode(t, root.act("gc", "").err, codes.Unavailable, "nothing was done")
	if o := root.act("list", ""); strings.Count(o.text, `"dataset"`) != 1 || !strings.Contains(o.text, `"shared"`) {
		t.Error(o)
	}
	if o := root.get(`{"dataset": "shared"}`); o.err != nil || o.rows != 10 {
		t.Error(o) // the read continues
	}
}

// While a read is under way its beginning is on record already, whatever becomes of the server.
func TestRunningReadIsOnRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(audit.Options{Path: file, Logger: slog.New(slog.DiscardHandler), SyncReads: true})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r := serveRules(t, wrongRules, Options{Audit: log})
	rec := samples(0, 100)
	defer rec.Release()
	if o := r.as("root").put(command(`{"put": {"dataset": "shared", "key": "file_name"}}`), rec); o.err != nil {
		t.Fatal(o.err)
	}
	plan, end := r.as("bob").streaming(`{"dataset": "shared", "batch": 1, "batch_bytes": 1, "rank": 0, "epochs": 1000}`)
	begun := 0
	for _, e := range lines(t, file) {
		if e.Event == audit.Read && e.Plan == plan {
			if begun++; e.Phase != audit.Begin || e.Principal != "bob" || e.Snapshot != 1 {
				t.Errorf("%+v", e)
			}
		}
	}
	if begun != 1 {
		t.Errorf("the stream that runs is on record %d times", begun)
	}
	end()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.as("bob").get(`{"dataset": "shared"}`).err, codes.Unavailable, "nothing was read")
}
