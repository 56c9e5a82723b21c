package command

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
)

// TestAskedOfBuckets: attach and import say what they have asked of the bucket, which is what its server has counted,
// failures included.
func TestAskedOfBuckets(t *testing.T) {
	server := serveS3(t, objecttest.Config{Seed: 3})
	url := server.URL("photos")
	for i := range 40 {
		server.PutObject("photos", fmt.Sprintf("train/%c/%03d.jpg", 'a'+i%2, i), photo(t, i))
	}
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Share: .1, Status: 503, Code: "SlowDown"})
	same := func(what string, list []bucketAsked, before objecttest.Counts) {
		t.Helper()
		if len(list) != 1 || list[0].Bucket != url {
			t.Fatalf("%s asked %+v, want %s", what, list, url)
		}
		after, got := server.Counts(), list[0]
		for k, want := range map[object.Kind]int64{
			object.KindGet:  after.Requests[objecttest.Get] - before.Requests[objecttest.Get],
			object.KindList: after.Requests[objecttest.List] - before.Requests[objecttest.List],
			object.KindHead: after.Requests[objecttest.Head] - before.Requests[objecttest.Head],
		} {
			if got.Number(k) != want {
				t.Errorf("%s: %d requests of %s, the server counted %d", what, got.Number(k), k, want)
			}
		}
		if failed := after.Failed - before.Failed; got.Errors != failed || got.Gets == 0 || got.Lists == 0 {
			t.Errorf("%s: %+v, and the server failed %d", what, got, failed)
		}
	}
	before := server.Counts()
	same("attach", attachJSON(t, url, "d", "--store", filepath.Join(t.TempDir(), "a")).Buckets, before)
	before = server.Counts()
	status, out, errs := runImport(t, "--json", url, "d", "--store", filepath.Join(t.TempDir(), "i"))
	var sum summary
	if err := json.Unmarshal([]byte(out), &sum); status != 0 || err != nil {
		t.Fatal(errs, err)
	}
	same("import", sum.Buckets, before)
}

// The requests to a bucket are printed with their price, and no price is made up.
func TestBucketAsked(t *testing.T) {
	r := object.NewRequests(object.RequestsOptions{})
	price, _ := r.Prices.Find("s3://photos?region=us-east-1")
	counts := object.Counts{Gets: 12_000, Lists: 2, BytesIn: 5e9, Errors: 1}
	b := bucketAsked{"s3://photos?region=us-east-1", counts, object.Cost(counts, price, object.InRegion), price.Name(true)}
	want := "12,002 requests (12,000 get, 2 list), 5.0 GB read, 1 failed, $0.00481 by the list prices of s3 us-east-1 " +
		"within its region: s3://photos?region=us-east-1"
	if got := b.String(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	b = bucketAsked{Bucket: "s3://b?endpoint=http://127.0.0.1:9", Counts: object.Counts{Puts: 1, BytesOut: 1e6}}
	if got := b.String(); strings.Contains(got, "$") || !strings.Contains(got, "1.0 MB written") {
		t.Error(got)
	}
}
