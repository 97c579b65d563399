package ofctl

import "context"

const (
	multipartTable  = 3
	tableStatsBytes = 24 // of one table (OpenFlow 1.3.1, 7.3.5.4)
)

// FlowCount returns how many flows the switch has in all tables. The switch keeps that number for each table, so it
// looks at no flow.
func FlowCount(ctx context.Context, s *Session) (flows int, err error) {
	err = s.multipart(ctx, multipartTable, nil, func(b []byte) error {
		for ; len(b) >= tableStatsBytes; b = b[tableStatsBytes:] {
			flows += int(be.Uint32(b[4:]))
		}
		if len(b) > 0 {
			return errShort
		}
		return nil
	})
	return flows, err
}
