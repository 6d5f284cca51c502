//! Users and access rules: 3001 to 3010. The bodies are [`crate::body::UserInfo`] and [`crate::body::AclInfo`].

use super::field::headers;

headers! {
    /// 3001: make a user.
    CreateUser<'a> {
        username: &'a str = "username",
    }

    /// 3002: change a user.
    UpdateUser<'a> {
        username: &'a str = "username",
    }

    /// 3003: delete a user.
    DeleteUser<'a> {
        username: &'a str = "username",
    }

    /// 3004: one user.
    GetUser<'a> {
        username: &'a str = "username",
    }

    /// 3005: users whose name holds the filter.
    ListUsers<'a> {
        filter: Option<&'a str> = "filter",
    }

    /// 3006: make the rules of a subject.
    CreateAcl<'a> {
        subject: &'a str = "subject",
    }

    /// 3007: change the rules of a subject.
    UpdateAcl<'a> {
        subject: &'a str = "subject",
    }

    /// 3008: delete rules of a subject: all of them, or those for one resource.
    DeleteAcl<'a> {
        subject: &'a str = "subject",
        policy_type: Option<&'a str> = "policyType",
        resource: Option<&'a str> = "resource",
    }

    /// 3009: the rules of a subject.
    GetAcl<'a> {
        subject: &'a str = "subject",
    }

    /// 3010: the rules of all subjects that pass the filters.
    ListAcls<'a> {
        subject_filter: Option<&'a str> = "subjectFilter",
        resource_filter: Option<&'a str> = "resourceFilter",
    }
}
