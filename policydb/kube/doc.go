// Package kube turns Kubernetes objects into the small structs of policydb/policy, whether they come from the API
// server or from manifests: Policy, Endpoint, Namespace and Node convert; Read and Policies read files as kubectl does
// and refuse what the API server would; World makes a whole world of manifests.
//
// Everything here is a function of what it is given. Read alone opens files.
package kube
