package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// BootTwice calls boot, and once more after down if the first call fails: on a busy machine a server may miss its time
// to start. It names the reason on standard error. It does not retry when the context has ended.
func BootTwice(ctx context.Context, name string, boot, down func() error) error {
	err := boot()
	if err == nil || ctx.Err() != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s did not boot, retrying once: %v\n", name, err)
	if downErr := down(); downErr != nil {
		return errors.Join(err, downErr)
	}
	return boot()
}
