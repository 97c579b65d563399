package main

import (
	"fmt"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"github.com/spf13/pflag"
)

// budgetFlag is a flag for one field of policy.Budgets.
type budgetFlag struct {
	name  string
	value *int
	what  string
}

// Consequences of exceeding a budget of labels.
const (
	leftOutLabels = "; with more a pod is isolated and no peer, and a Namespace matches no selector"
	oldestPods    = "; the oldest pods keep theirs, the others are isolated and no peers"
)

// serviceFlags returns the flags of the budgets of Services.
func serviceFlags(b *service.Budgets) []budgetFlag {
	return []budgetFlag{
		{"max-namespace-services", &b.Services, "how many Services of one namespace have frontends"},
		{"max-service-frontends", &b.Service.Frontends, "addresses times ports, and node ports, of one Service"},
		{"max-service-ranges", &b.Service.Ranges, "loadBalancerSourceRanges of one Service"},
		{"max-service-endpoints", &b.Service.Endpoints, "endpoints, each times its ports, of one Service"},
		{"max-namespace-frontends", &b.Namespace.Frontends, "frontends of all Services of one namespace"},
		{"max-namespace-ranges", &b.Namespace.Ranges, "loadBalancerSourceRanges of all Services of one namespace"},
		{"max-namespace-endpoints", &b.Namespace.Endpoints, "endpoints of all Services of one namespace"},
	}
}

// budgetFlags returns the flags of the budgets of policies. Names consist of the limited object and part.
func budgetFlags(b *policy.Budgets) []budgetFlag {
	flags := []budgetFlag{
		{"max-namespace-policies", &b.Policies, "how many policies of one namespace permit anything"},
		{"max-port-numbers", &b.PortNumbers, "how many numbers one port name stands for in a rule of a policy"},
		{
			"max-policy-named-groups",
			&b.NamedGroups,
			"numbers of the port names of one policy, each times the peers that have it",
		},
		{"max-pod-ports", &b.PodPorts, "how many named ports of one pod count"},
		{"max-namespace-pod-ports", &b.NamespacePodPorts,
			"named ports of all pods of one namespace; the oldest pods keep theirs"},
		{"max-object-labels", &b.Labels, "labels of one pod or Namespace" + leftOutLabels},
		{"max-object-label-bytes", &b.LabelBytes, "bytes of the labels of one pod or Namespace" + leftOutLabels},
		{"max-namespace-pod-labels", &b.NamespacePodLabels, "labels of all pods of one namespace" + oldestPods},
		{"max-namespace-pod-label-bytes", &b.NamespacePodLabelBytes,
			"bytes of the labels of all pods of one namespace" + oldestPods},
	}
	for _, of := range []struct {
		name, what string
		budget     *policy.PolicyBudget
	}{
		{"policy", "one policy", &b.Policy},
		{"namespace", "all policies of one namespace", &b.Namespace},
	} {
		flags = append(
			flags,
			budgetFlag{"max-" + of.name + "-rules", &of.budget.Rules, "ingress and egress rules of " + of.what},
			budgetFlag{"max-" + of.name + "-peers", &of.budget.Peers, "peers with selectors of " + of.what},
			budgetFlag{
				"max-" + of.name + "-terms",
				&of.budget.Terms,
				"requirements and values in the selectors of " + of.what,
			},
			budgetFlag{"max-" + of.name + "-blocks", &of.budget.Blocks, "ipBlocks and their excepts of " + of.what},
			budgetFlag{"max-" + of.name + "-ports", &of.budget.Ports, "ports of " + of.what},
			budgetFlag{"max-" + of.name + "-port-names", &of.budget.PortNames,
				"port names, each times the selectors of its egress rule, of " + of.what},
			budgetFlag{"max-" + of.name + "-members", &of.budget.Members,
				"pods that the peers choose, counted a peer and in powers of two from 256, of " + of.what +
					": a node has the addresses of no more"},
		)
	}
	return flags
}

func addBudgetFlags(f *pflag.FlagSet, b *policy.Budgets, services *service.Budgets) {
	*b, *services = policy.DefaultBudgets, service.DefaultBudgets
	for _, flag := range budgetFlags(b) {
		f.IntVar(flag.value, flag.name, *flag.value, "budget: "+flag.what+"; the rest is left out and permits nothing")
	}
	for _, flag := range serviceFlags(services) {
		f.IntVar(flag.value, flag.name, *flag.value, "budget: "+flag.what+"; nodes do not get the rest")
	}
}

// checkBudgets rejects budgets that would ignore everything, and namespace budgets below that of a single object.
func checkBudgets(b *policy.Budgets, services *service.Budgets) error {
	for _, flag := range append(budgetFlags(b), serviceFlags(services)...) {
		if *flag.value < 1 {
			return fmt.Errorf("--%s %d: a budget is at least 1", flag.name, *flag.value)
		}
	}
	if part, bound := b.Policy.Exceeds(&b.Namespace); part != "" || b.Policy.Members > b.Namespace.Members {
		return fmt.Errorf("the budget of a policy exceeds that of a namespace (%s: %d): raise --max-namespace-*", part,
			bound)
	}
	if part, bound := services.Service.Exceeds(&services.Namespace); part != "" {
		const problem = "the budget of a Service exceeds that of a namespace (%s: %d): raise --max-namespace-*"
		return fmt.Errorf(problem, part, bound)
	}
	return nil
}
