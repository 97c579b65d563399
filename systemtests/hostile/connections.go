package hostile

import (
	"context"
	"net"
	"sync"
	"time"
)

// silentConnections keeps 1,500 connections to each port that send nothing, of 50 addresses. What netmaster closes is
// opened again 3 s later.
func silentConnections(ctx context.Context, a *Arena) error {
	var all sync.WaitGroup
	for n := range 3000 {
		address := a.FeedAddress()
		if n%2 == 1 {
			address = a.AccessAddress()
		}
		from := &net.TCPAddr{IP: net.IPv4(127, 63, 0, byte(1+n%50))}
		all.Go(func() {
			for ctx.Err() == nil {
				conn, err := (&net.Dialer{LocalAddr: from}).DialContext(ctx, "tcp", address)
				if err == nil {
					stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
					_, _ = conn.Read(make([]byte, 1)) // until netmaster closes it
					stop()
					_ = conn.Close()
				}
				pause(ctx, 3*time.Second)
			}
		})
	}
	all.Wait()
	return nil
}
