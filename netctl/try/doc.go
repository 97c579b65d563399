// Package try runs the pods of manifests as network namespaces on the nodes that scripts/try made, and measures with
// packets which of them reach which.
//
//	s, err := try.Load("/var/lib/flowkeep-try")
//	pods, err := s.Sync(ctx, cluster) // pods that are not there are created, others are removed
//	m := s.Measure(ctx, pods, time.Second)
//
// It needs root, and the programs ip and nsenter.
package try
