// Package manifests serves the objects of directories of manifests the way an API server does, so that netmaster runs
// without Kubernetes:
//
//	src, err := manifests.Open(log, "./shop") // the error names each object that an API server would refuse
//	go src.Run(ctx)                           // applies changed files
//	client, err := kubernetes.NewForConfig(src.RestConfig())
//
// Lists and watches of namespaces, nodes, pods, NetworkPolicies, Services and EndpointSlices work, and Events are
// accepted and dropped. Everything else is rejected. No socket is opened: the RoundTripper of RestConfig responds.
package manifests
