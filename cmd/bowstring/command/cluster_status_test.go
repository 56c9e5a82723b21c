package command

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
)

// The output of cluster status --json is a format that programs read: docs/cli.md has it.
func TestClusterStatusJSON(t *testing.T) {
	node := func(id, zone string) layout.Node {
		return layout.Node{ID: id, Address: "grpc://" + id + ":8815", Zone: zone, Weight: 2, Capacity: 1 << 30}
	}
	since := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	status, err := statusOf("lab", members.View{
		Nodes: []layout.Node{node("a", "x"), node("b", "")},
		Leaving: []members.Leaving{{Node: node("c", "y"), Draining: members.Draining{Since: since, Streams: 3, Blobs: 4,
			Bytes: 5, Held: 6}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printJSON(&out, status); err != nil {
		t.Fatal(err)
	}
	const golden = `{
  "cluster": "lab",
  "layout": "LAYOUT",
  "nodes": [
    {
      "id": "a",
      "address": "grpc://a:8815",
      "zone": "x",
      "weight": 2,
      "capacity": 1073741824,
      "share": 0.5
    },
    {
      "id": "b",
      "address": "grpc://b:8815",
      "weight": 2,
      "capacity": 1073741824,
      "share": 0.5
    },
    {
      "id": "c",
      "address": "grpc://c:8815",
      "zone": "y",
      "weight": 2,
      "capacity": 1073741824,
      "share": 0,
      "draining": {
        "since": "2026-05-01T12:00:00Z",
        "streams": 3,
        "blobs": 4,
        "bytes": 5,
        "held": 6,
        "done": false
      }
    }
  ]
}
`
	if got := strings.Replace(out.String(), status.Layout, "LAYOUT", 1); got != golden {
		t.Errorf("it prints\n%s\nwant\n%s", got, golden)
	}
	docs, err := os.ReadFile("../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(docs), "## `bowstring cluster status")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(golden, -1) {
		if !strings.Contains(section, m[0][:len(m[0])-1]) {
			t.Errorf("docs/cli.md says nothing of %q", m[1])
		}
	}
}
