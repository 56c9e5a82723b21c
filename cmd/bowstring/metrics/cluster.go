package metrics

import "time"

// Cluster is what a server is in its cluster, and what went on between it and other nodes.
type Cluster struct {
	Name, Node, Zone string
	View             string // names who owns what, as this node has it; "" where it does not know
	Members          int
	Share            float64
	Read             time.Time // when the leases were last read
	Failed           bool      // they could not be since

	Up, Down, Silent, InFlight int64 // ways to other nodes, and blobs asked for by them
	// Peers and Lent are by class: [SameZone] and [OtherZone].
	Peers map[string]Peers
	Lent  map[string]Lent
}

// Classes of other nodes.
const (
	SameZone  = "zone"
	OtherZone = "far"
)

// Peers count what this node asked others for.
type Peers struct{ Asked, Answered, Bytes, Refused int64 }

// Lent count what this node sent others.
type Lent struct{ Blobs, Bytes, Refused int64 }

func (ch sink) cluster(c *Cluster) {
	ch.send(clusterInfo, 1, c.Name, c.Node, c.Zone, c.View)
	ch.send(clusterMembers, float64(c.Members))
	ch.send(clusterShare, c.Share)
	ch.at(clusterRead, c.Read)
	ch.truth(clusterFailed, c.Failed)
	ch.send(peerLinks, float64(c.Up), "up")
	ch.send(peerLinks, float64(c.Down), "down")
	ch.send(peerLinks, float64(c.Silent), "silent")
	ch.send(peerInFlight, float64(c.InFlight))
	for _, class := range []string{SameZone, OtherZone} {
		p, l := c.Peers[class], c.Lent[class]
		for m, n := range map[*metric]int64{
			peerAsked: p.Asked, peerReads: p.Answered, peerBytes: p.Bytes, peerRefused: p.Refused,
			lentReads: l.Blobs, lentBytes: l.Bytes, lentRefused: l.Refused,
		} {
			ch.send(m, float64(n), class)
		}
	}
}
