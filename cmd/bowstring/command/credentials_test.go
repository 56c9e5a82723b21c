package command

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// TestBucketCredentials: two buckets have two owners. A server reads each with the credentials that the file names for it,
// a tenant that is not among a bucket's may read nothing of it, from the cache neither, and no secret is shown.
func TestBucketCredentials(t *testing.T) {
	server := serveS3(t, objecttest.Config{Owners: map[string]string{"cats": "idcats", "dogs": "iddogs"}})
	secrets := t.TempDir()
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", writeText(t, secrets, "aws", "[cats]\naws_access_key_id = idcats\n"+
		"aws_secret_access_key = secret-of-cats\n"))
	keys := writeText(t, secrets, "dogs.json", `{"id": "iddogs", "secret": "secret-of-dogs"}`)
	dir := filepath.Join(t.TempDir(), "store")
	for _, name := range []string{"cats", "dogs"} {
		for i := range 8 {
			server.PutObject(name, fmt.Sprintf("%d.jpg", i), photo(t, i))
		}
		t.Setenv("AWS_ACCESS_KEY_ID", "id"+name)
		attachJSON(t, server.URL(name), name, "--store", dir)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "another")
	rights, err := readBucketRights(writeText(t, secrets, "buckets.yaml", fmt.Sprintf(`buckets:
  - {bucket: "%s", profile: cats, tenants: [cats, both]}
  - {bucket: "%s", keys_file: %s, tenants: [dogs, both]}
`, server.URL("cats"), server.URL("dogs"), keys)))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	n, err := newNode(t.Context(), dir, false, limits{rights: rights, spill: spillConfig{
		dir: filepath.Join(t.TempDir(), "spill"), bytes: 64 << 20, minBytes: 16 << 20, keepFree: 1}}, nil, logger)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.serve(listener)
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client := flight.NewClientFromConn(conn, nil)
	read := func(dataset, tenant string) (rows int64, err error) {
		return readRows(t.Context(), client, schema.Request{Dataset: dataset}, tenant)
	}
	for range 2 { // the second time out of the cache
		for _, dataset := range []string{"cats", "dogs"} {
			for _, tenant := range []string{"both", "cats", "dogs"} {
				rows, err := read(dataset, tenant)
				if tenant == "both" || tenant == dataset {
					if rows != 8 || err != nil {
						t.Errorf("tenant %s read %d of 8 rows of %s: %v", tenant, rows, dataset, err)
					}
					continue
				}
				if rows != 0 || status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), server.URL(dataset)) {
					t.Errorf("tenant %s read %d rows of %s: %v; want PERMISSION_DENIED that names %s", tenant, rows, dataset, err,
						server.URL(dataset))
				}
				if strings.Contains(fmt.Sprint(err), "secret-of") {
					t.Errorf("an error has a secret: %v", err)
				}
			}
		}
	}
	_ = conn.Close()
	if err := n.close(context.Background()); err != nil { // the log is whole now
		t.Error(err)
	}
	if strings.Contains(log.String(), "secret-of") {
		t.Error("a secret is in the log")
	}
}

func writeText(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The first entry that fits counts, a star stands for no endpoint, and what makes no sense is refused by name.
func TestBucketRights(t *testing.T) {
	list := bucketRights{{Bucket: "s3://team-a", Profile: "a", Tenants: []string{"a"}}, {Bucket: "s3://team-*", Profile: "all"}}
	for url, want := range map[string]string{"s3://team-a": "a", "s3://team-b?region=eu-west-1": "all", "s3://other": "",
		"s3://team-b?endpoint=http://elsewhere": ""} {
		o, err := list.options(url, object.Options{})
		if err != nil || o.Profile != want {
			t.Errorf("%s is read by profile %q, %v; want %q", url, o.Profile, err, want)
		}
	}
	if list.mayRead("b", "s3://team-a") == nil || list.mayRead("a", "s3://team-a") != nil ||
		list.mayRead("b", "s3://team-b") != nil || list.mayRead("b", "s3://other") != nil {
		t.Error("other tenants may read than those that are named")
	}
	for text, want := range map[string]string{
		"":                            "no buckets",
		"buckets: [{bucket: photos}]": "entry 1: bucket",
		"buckets: [{bucket: 's3://b', secret: abc}]":                                  "secret",
		"buckets: [{bucket: 's3://b', tenants: []}]":                                  "tenants is empty",
		"buckets: [{bucket: 'gs://b', profile: x}]":                                   "profile is of buckets",
		"buckets: [{bucket: 's3://a'}, {bucket: 's3://b', profile: x, keys_file: y}]": "entry 2",
	} {
		if _, err := readBucketRights(writeText(t, t.TempDir(), "f", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error about %q", text, err, want)
		}
	}
	bad := bucketRights{{Bucket: "s3://b", KeysFile: writeText(t, t.TempDir(), "k", `{"id": "x", "secret": "s3cr3t"`)}}
	if _, err := bad.options("s3://b", object.Options{}); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("keys that cannot be read: %v", err)
	}
}
