//go:build cassandra

package faults

import (
	"testing"
	"time"

	"github.com/gocql/gocql"
)

// checkClocks checks that a node's clock can be made wrong. Otherwise clock faults would silently have no effect.
func (c *cluster) checkClocks(t *testing.T) {
	t.Helper()
	cl := gocql.NewCluster(nodeIP(0))
	cl.Port, cl.ProtoVersion, cl.Timeout = c.port, 4, 10*time.Second
	cl.HostFilter = gocql.WhiteListHostFilter(nodeIP(0))
	session, err := cl.CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	const by = 3 * time.Second
	c.setClock(t, 0, by)
	defer c.setClock(t, 0, 0)
	var at time.Time
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if err := session.Query("SELECT toTimestamp(now()) FROM system.local").Scan(&at); err != nil {
			t.Fatal(err)
		}
		if wrong := time.Until(at); wrong > by/2 {
			t.Logf("the clock of node 1 is wrong by %s", wrong)
			return
		}
		time.Sleep(100 * time.Millisecond) // the library reads its file each second, without notice
	}
	t.Fatalf("the clock of node 1 stays right: it says %s", at)
}
