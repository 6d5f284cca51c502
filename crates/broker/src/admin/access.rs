//! Users and rules (3001 to 3010), as a broker without access control answers: it checks what it was asked, and keeps none.

use net::Request;
use protocol::body::{AclInfo, UserInfo};
use protocol::code::{ResponseCode, request};

use crate::answer::body;
use crate::refusal::Refusal;

/// Answers each of them; there is nothing that could succeed.
pub(crate) fn refuse(request: &Request<'_>) -> Refusal {
    match checked(request) {
        Ok(()) => Refusal::new(
            ResponseCode::SystemError,
            "this broker keeps no users and no rules: authenticationEnabled and authorizationEnabled are false, \
             authenticationMetadataProvider and authorizationMetadataProvider are not configured",
        ),
        Err(refusal) => refusal,
    }
}

/// In Apache's order: the name first, then what was sent.
fn checked(request: &Request<'_>) -> Result<(), Refusal> {
    let code = request.header.code;
    let field = |name: &str| request.header.fields.get(name).unwrap_or_default();
    match code {
        request::AUTH_CREATE_USER | request::AUTH_UPDATE_USER | request::AUTH_GET_USER => {
            if field("username").trim().is_empty() {
                return Err(Refusal::new(ResponseCode::InvalidParameter, "The username is blank"));
            }
            if code != request::AUTH_GET_USER {
                body::<UserInfo>(request)?;
            }
        }
        request::AUTH_DELETE_USER if field("username").trim().is_empty() => {
            return Err(Refusal::new(ResponseCode::NoPermission, "username can not be blank"));
        }
        request::AUTH_CREATE_ACL | request::AUTH_UPDATE_ACL if body::<AclInfo>(request)?.policies.is_empty() => {
            return Err(Refusal::new(ResponseCode::SystemError, "The body of acl is null"));
        }
        request::AUTH_DELETE_ACL | request::AUTH_GET_ACL if !is_subject(field("subject")) => {
            let shown: String = field("subject").chars().take(64).collect();
            let remark = format!("The subject is null. Field subject is \"{shown}\", and should be like User:name");
            return Err(Refusal::new(ResponseCode::NoPermission, remark));
        }
        _ => {}
    }
    Ok(())
}

/// `User:name`, the one kind of subject that there is.
fn is_subject(text: &str) -> bool {
    text.split_once(':').is_some_and(|(kind, name)| kind.eq_ignore_ascii_case("User") && !name.is_empty())
}
