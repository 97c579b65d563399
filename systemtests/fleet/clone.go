package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// CloneWorks gives clusters what one has on the hub, in etcd itself: what takes the API server hours, for it writes each work many times until
// it is as it is to be, takes minutes. Works are the same for all clusters as long as nothing is overridden.
func (f *Fleet) CloneWorks(ctx context.Context, from string, to []string) error {
	prefix := func(cluster string) string {
		return "/hub/work.open-cluster-management.io/manifestworks/" + cluster + "/"
	}
	for after := prefix(from); ; {
		var page struct {
			Kvs  []struct{ Key, Value []byte }
			More bool
		}
		end := []byte(prefix(from))
		end[len(end)-1]++
		if err := f.etcd(ctx, "range", map[string]any{"key": []byte(after), "range_end": end, "limit": 20}, &page); err != nil {
			return err
		}
		for _, one := range page.Kvs {
			if err := f.clone(ctx, from, one.Value, to, func(cluster string) []byte {
				return append([]byte(prefix(cluster)), bytes.TrimPrefix(one.Key, []byte(prefix(from)))...)
			}); err != nil {
				return err
			}
			after = string(one.Key) + "\x00"
		}
		if !page.More {
			return nil
		}
	}
}

func (f *Fleet) clone(ctx context.Context, from string, value []byte, to []string, key func(cluster string) []byte) error {
	var o struct {
		Metadata struct{ UID, Namespace string }
	}
	if err := json.Unmarshal(value, &o); err != nil || o.Metadata.Namespace != from {
		return fmt.Errorf("etcd has a work that is none: %.200s", value)
	}
	failed := make([]error, len(to))
	var all sync.WaitGroup
	for i, cluster := range to {
		all.Go(func() {
			uid := fmt.Sprintf("%s%04x", o.Metadata.UID[:len(o.Metadata.UID)-4], i)
			copied := bytes.Replace(value, []byte(o.Metadata.UID), []byte(uid), 1)
			copied = bytes.Replace(copied, fmt.Appendf(nil, `"namespace":%q`, from), fmt.Appendf(nil, `"namespace":%q`, cluster), 1)
			failed[i] = f.etcd(ctx, "put", map[string]any{"key": key(cluster), "value": copied}, nil)
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// Put writes an object of the hub into etcd, past the API server, which costs a tenth of the time. The path is that of
// the object without a version, as pods/NAMESPACE/NAME, and the object is complete: with a UID and a creation time.
func (f *Fleet) Put(ctx context.Context, path string, object []byte) error {
	return f.etcd(ctx, "put", map[string]any{"key": []byte("/hub/" + path), "value": object}, nil)
}

// etcdClient keeps as many connections open as there are requests at a time: each new one takes a port for a minute.
var etcdClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// etcd calls etcd by its HTTP gateway.
func (f *Fleet) etcd(ctx context.Context, call string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.port(2379)+"/v3/kv/"+call, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := etcdClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s: %s", call, res.Status)
	}
	if answer == nil {
		answer = &struct{}{}
	}
	return json.NewDecoder(res.Body).Decode(answer)
}
