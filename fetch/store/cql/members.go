package cql

import (
	"context"
	"fmt"
	"time"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

const (
	writeMember = "INSERT INTO " + tableMembers + " (id, holder, acked, beat, holds) VALUES (?, ?, ?, ?, ?) " +
		"USING TTL ?"
	deleteMember  = "DELETE FROM " + tableMembers + " WHERE id = ?"
	selectMembers = "SELECT id, holder, acked, beat, holds FROM " + tableMembers
)

// memberTTL is Options.Lapse unless it is said.
const memberTTL = time.Minute

// Announce implements protocol.Members. The beat is the write time, so that no
// clock decides which of two rows is the newer one.
func (d database) Announce(ctx context.Context, m protocol.Member) error {
	s := d.s
	if m.Beat <= 0 {
		// the driver would take 0 for now
		return fmt.Errorf("%w: beat %d of member %s", schema.ErrInvalid, m.Beat, m.ID)
	}
	q := s.db.Query(writeMember, m.ID, m.Holder, int64(m.Acked), m.Beat, m.Holds, int(s.options.Lapse.Seconds())).
		Consistency(s.catalogLevel()).WithTimestamp(m.Beat)
	err := s.exec(ctx, q, tableMembers, "announce this process")
	if code, ok := codeOf(err); ok && code == codeUnauthorized {
		err = fmt.Errorf("%w: %w", protocol.ErrReadOnly, err)
	}
	return err
}

// Members implements protocol.Members.
func (d database) Members(ctx context.Context) ([]protocol.Member, error) {
	s := d.s
	iter := s.db.Query(selectMembers).WithContext(ctx).Consistency(s.catalogLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	var list []protocol.Member
	for {
		var m protocol.Member
		var acked int64
		if !iter.Scan(&m.ID, &m.Holder, &acked, &m.Beat, &m.Holds) {
			break
		}
		m.Acked = protocol.Epoch(acked)
		list = append(list, m)
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableMembers, "list the processes at work")
	}
	return list, nil
}

// Leave implements protocol.Members. Its write time is the time of day in
// microseconds, which no count of beats comes near to.
func (d database) Leave(ctx context.Context, id string) error {
	s := d.s
	q := s.db.Query(deleteMember, id).Consistency(s.catalogLevel())
	return s.exec(ctx, q, tableMembers, "take leave")
}
